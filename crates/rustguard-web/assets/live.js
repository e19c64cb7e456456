// The live page: exchanges what has changed. Without this script, the page is the same at the moment it was loaded.
"use strict";
(() => {
  const live = document.getElementById("live");
  const news = document.getElementById("news");
  const connection = document.getElementById("connection");
  if (!live || !window.EventSource) return;

  const say = (element, text) => {
    if (element.textContent !== text) element.textContent = text;
  };

  // Makes `now` what `next` is, and keeps every element that stays: the focus, the selection and what was ticked stay with it. Elements with
  // an id are the same element wherever they are, so that a button never becomes that of another machine.
  const exchange = (now, next) => {
    for (const { name } of [...now.attributes]) if (!next.hasAttribute(name)) now.removeAttribute(name);
    for (const { name, value } of next.attributes) if (now.getAttribute(name) !== value) now.setAttribute(name, value);
    let at = now.firstChild;
    for (const wanted of [...next.childNodes]) {
      const id = wanted.id;
      let found = at;
      if (id) found = [...now.children].find((child) => child.id === id) ?? null;
      else if (at && (at.id || at.nodeName !== wanted.nodeName)) found = null;
      if (found && found.nodeName === wanted.nodeName) {
        if (found !== at) now.insertBefore(found, at);
        else at = at.nextSibling;
        if (found.nodeType === Node.TEXT_NODE) say(found, wanted.textContent);
        else if (found.nodeType === Node.ELEMENT_NODE) exchange(found, wanted);
      } else {
        now.insertBefore(document.importNode(wanted, true), at);
      }
    }
    while (at) {
      const gone = at;
      at = at.nextSibling;
      gone.remove();
    }
  };

  const source = new EventSource("/live?page=" + encodeURIComponent(live.dataset.page));
  source.addEventListener("open", () => say(connection, "Live: this page changes by itself."));
  source.addEventListener("error", () => say(connection, "Not live: the server does not answer. Trying again."));
  source.addEventListener("news", (event) => say(news, event.data));
  source.addEventListener("parts", (event) => {
    const template = document.createElement("template");
    template.innerHTML = event.data;
    const next = live.cloneNode(false);
    next.append(template.content);
    exchange(live, next);
  });
  source.addEventListener("ended", () => {
    source.close();
    location.reload();
  });
})();
