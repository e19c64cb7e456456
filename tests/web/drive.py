#!/usr/bin/env python3
"""Drives the status page in headless Chromium by WebDriver, as somebody who clicks. `tests/tests/scenarios/web.rs` runs it on the
server's machine of a network: `drive.py FOLDER`. It needs chromedriver, and axe-core in $RUSTGUARD_AXE.

The files in FOLDER are how both talk: `code` is the code of the window for machines that are to join, `done` says that all is well.
Screenshots go to FOLDER too."""

import base64
import json
import os
import pathlib
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PAGE = "http://127.0.0.1:9580"
DRIVER = "http://127.0.0.1:9515"
EVIL = "http://127.0.0.1:9599"
FOLDER = pathlib.Path(sys.argv[1])
POLICY = pathlib.Path("/etc/rustguard/rgs.policy")
AXE = pathlib.Path(os.environ["RUSTGUARD_AXE"]).read_text()
RUSTGUARD = os.environ["RUSTGUARD_BIN"]
# The limit of a wait. Nothing waits for so long unless it fails.
LONG = 60
HOSTILE = "<img src=x onerror=window.evil=1><script>window.evil=1</script>"
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
TAB, ENTER, SPACE = "\ue004", "\ue007", " "


def call(method, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(DRIVER + path, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=LONG) as answer:
            return json.load(answer)["value"]
    except urllib.error.HTTPError as error:
        raise RuntimeError(f"{method} {path}: {json.load(error)['value']['message'].splitlines()[0]}") from None


def until(what, done):
    end = time.monotonic() + LONG
    while True:
        try:
            result = done()
            if result:
                return result
        except RuntimeError as error:
            result = error
        if time.monotonic() > end:
            raise SystemExit(f"not so within {LONG} s: {what}: {result}")
        time.sleep(0.1)


def check(what, holds, seen=""):
    if not holds:
        raise SystemExit(f"not so: {what}: {seen}")


class Browser:
    def __init__(self, scripts=True):
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                     "--disable-background-networking", "--hide-scrollbars", f"--user-data-dir={FOLDER}/profile-{scripts}",
                     # It looks names up at its start, and the first page waits until nobody has answered.
                     "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
                     # Colours are judged as they are, and not on their way to others.
                     "--force-prefers-reduced-motion"]
        options = {"args": arguments, "prefs": {} if scripts else {"profile.managed_default_content_settings.javascript": 2}}
        capabilities = {"alwaysMatch": {"browserName": "chrome", "goog:chromeOptions": options}}
        self.at = "/session/" + call("POST", "/session", {"capabilities": capabilities})["sessionId"]

    def close(self):
        call("DELETE", self.at)

    def go(self, url):
        call("POST", self.at + "/url", {"url": url})

    def find(self, css):
        return call("POST", self.at + "/element", {"using": "css selector", "value": css})[ELEMENT]

    def has(self, css):
        return bool(call("POST", self.at + "/elements", {"using": "css selector", "value": css}))

    def link(self, words):
        return call("POST", self.at + "/element", {"using": "partial link text", "value": words})[ELEMENT]

    def click(self, css):
        # The page is live: an element may be another one between the two calls.
        for _ in range(20):
            try:
                return call("POST", f"{self.at}/element/{self.find(css)}/click", {})
            except RuntimeError as error:
                if "stale" not in str(error):
                    raise
        raise RuntimeError(f"{css} changes all the time")

    def follow(self, words):
        call("POST", f"{self.at}/element/{self.link(words)}/click", {})

    def write(self, css, text):
        call("POST", f"{self.at}/element/{self.find(css)}/value", {"text": text})

    def text(self, css="main"):
        return call("GET", f"{self.at}/element/{self.find(css)}/text")

    def url(self):
        return call("GET", self.at + "/url")

    def says(self, words, css="main"):
        until(f"`{words}` on the page", lambda: words in self.text(css))

    def run(self, script, *arguments):
        return call("POST", self.at + "/execute/sync", {"script": script, "args": list(arguments)})

    def press(self, key):
        actions = [{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]
        call("POST", self.at + "/actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]})

    def focused(self):
        return self.run("const e = document.activeElement; return (e.id || '') + '|' + e.textContent.trim()")

    def devtools(self, command, **parameters):
        return call("POST", self.at + "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def look(self, name):
        """Screenshots in both modes and all widths; and what axe says, which has to be nothing. The modes differ in colours and the widths
        in the layout, so axe sees each of them once."""
        for mode, width in [(mode, width) for mode in ["light", "dark"] for width in [400, 800, 1400]]:
            self.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": mode}])
            self.devtools("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
            wide = self.run("return document.documentElement.scrollWidth")
            check(f"{name} fits into {width} pixels", wide <= width, wide)
            picture = self.devtools("Page.captureScreenshot", captureBeyondViewport=True)["data"]
            (FOLDER / f"{name}-{width}-{mode}.png").write_bytes(base64.b64decode(picture))
            if (mode, width) not in [("light", 400), ("light", 800), ("dark", 1400)]:
                continue
            # By the driver, which the policy of the page does not bind; nothing is loaded. A page that was loaded has it no more.
            if not self.run("return 'axe' in window"):
                self.run(AXE)
            found = call("POST", self.at + "/execute/async", {
                "script": "axe.run(document, {resultTypes: ['violations']}).then(arguments[0])", "args": []})
            found = [(v["id"], v["help"], [node["html"] for node in v["nodes"]][:3]) for v in found["violations"]]
            check(f"axe finds nothing on {name} at {width} pixels, {mode}", not found, json.dumps(found, indent=1))
        self.devtools("Emulation.clearDeviceMetricsOverride")
        self.devtools("Emulation.setEmulatedMedia", features=[])
        print(f"{name}: looked at", flush=True)


def new_link(name):
    answer = subprocess.run([RUSTGUARD, "web", "--json", "--name", name, "-i", "rgs"], capture_output=True, check=True, text=True)
    return json.loads(answer.stdout)["url"]


def log_in(browser, name):
    browser.go(new_link(name))
    browser.says("Log in")
    browser.click("button.primary")
    until("the network after the login", lambda: browser.url() == PAGE + "/")


def session_cookie(browser):
    return next(cookie for cookie in call("GET", browser.at + "/cookie") if cookie["name"] == "rustguard")


class Evil(BaseHTTPRequestHandler):
    """Another web site: a form for the page that sends itself, the page in a frame, and requests by a script."""

    def do_GET(self):
        target = {"/form": f"<form method=post action='{PAGE}/window/open'></form><script>document.forms[0].submit()</script>",
                  "/frame": f"<iframe src='{PAGE}/' onload='document.title=\"loaded\"'></iframe>"}
        body = target.get(self.path, "<p>evil").encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def with_scripts():
    browser = Browser()
    browser.go(PAGE + "/")
    browser.says("Not logged in")
    link = new_link("stolen")
    browser.go(link)
    browser.look("login")
    log_in(browser, "clicker")
    check("the cookie is closed to scripts and other sites", session_cookie(browser)["httpOnly"] and session_cookie(browser)["sameSite"] == "Strict")
    browser.says("Live", "#connection")
    browser.says("m1")
    browser.look("network")

    # A question to the policy, by keyboard alone; what was written stays when the page changes by itself.
    browser.go(PAGE + "/policy")
    browser.says("Live", "#connection")
    browser.write("#from", "m1" + TAB + "192.168.1.7" + TAB + "tcp/22" + ENTER)
    browser.says("Yes: from m1 to 192.168.1.7, tcp/22", "#answer")
    browser.says("no machine and no group is called laptop", "#mistakes")
    browser.look("policy")
    browser.says("Live", "#connection")
    browser.write("#traffic", ",tcp/23")
    POLICY.write_text("allow m1, m2 -> * icmp,tcp/22\nalow laptop -> *\n")
    browser.says("line 2, column 1", "#mistakes")
    browser.look("policy-wrong")
    browser.press(ENTER)
    browser.says("Only in part: from m1 to 192.168.1.7, tcp/22,tcp/23", "#answer")
    POLICY.write_text("allow m1, m2 -> * icmp,tcp/22\nallow laptop -> *\n")

    # By keyboard: the first stop leads to the content, the button is pressed.
    browser.go(PAGE + "/joining")
    browser.press(TAB)
    check("the first stop is the way to the content", "Skip" in browser.focused(), browser.focused())
    browser.press(ENTER)
    check("it leads there", browser.run("return document.activeElement.id") == "main", browser.focused())
    browser.press(TAB)
    check("then the first field", browser.focused().startswith("approve|"), browser.focused())
    browser.press(SPACE)
    browser.press(TAB)
    check("then the button", browser.focused().startswith("open|"), browser.focused())
    browser.press(ENTER)
    browser.says("The window is open.")
    code = browser.text(".code")
    check("a code and a picture of it", len(code) == 9 and browser.has("svg.qr"), code)
    (FOLDER / "code.new").write_text(code)
    (FOLDER / "code.new").rename(FOLDER / "code")

    # Two machines ask; they come to the page by themselves. What has the focus keeps it meanwhile.
    browser.run("document.getElementById('close-button').focus()")
    until("two machines wait", lambda: len(call("POST", browser.at + "/elements", {"using": "css selector", "value": "#waiting tbody tr"})) == 2)
    check("the focus stays", browser.focused().startswith("close-button|"), browser.focused())
    row = lambda name: browser.run(
        "return [...document.querySelectorAll('#waiting tbody tr')].find(r => r.textContent.includes(arguments[0])).querySelector('button').id", name)
    # At once: the window is open for a minute.
    browser.click("#" + row("m2"))
    browser.says("m2 is admitted.")
    browser.look("joining")
    browser.click("#" + row("m3").replace("Approve", "Refuse"))
    browser.says("The machine was refused.")
    # The window may be over by now, or be so between a look and a click.
    def closes():
        if not browser.has("#close-button"):
            browser.click("#open")
        browser.click("#close-button")
        return "The window is closed." in browser.text(".notice")
    until("a click closes the window", closes)

    # Removal, which asks once more.
    browser.go(PAGE + "/")
    browser.says("m2", "#members")
    browser.follow("m2")
    browser.says("Connection")
    browser.look("member")
    browser.follow("Remove m2")
    browser.says("Remove m2?")
    browser.look("removal")
    browser.click("input[name=revoke]")
    browser.click("#remove")
    browser.says("m2 was removed.")
    until("the machine is gone", lambda: "m2" not in browser.text("#members"))

    browser.go(PAGE + "/log")
    for words in ["window opened", "approved", "approval refused", "removed", "web: clicker#1"]:
        browser.says(words)
    browser.look("log")

    hostile_words(browser)
    attacks(browser, link)
    cookie = session_cookie(browser)["value"]
    browser.go(PAGE + "/")
    browser.click(".logout button")
    browser.says("You have logged out.")
    request = urllib.request.Request(PAGE + "/", headers={"Cookie": f"rustguard={cookie}"})
    try:
        urllib.request.urlopen(request)
        raise SystemExit("a session that has ended goes on")
    except urllib.error.HTTPError as error:
        check("the session has ended", error.code == 403, error.code)
    browser.close()


def hostile_words(browser):
    """Texts of others that reach the page, with markup in them: they are text."""
    kept = POLICY.read_text()
    POLICY.write_text(f"{kept}# {HOSTILE}\nallow {HOSTILE} -> db\n")
    browser.go(PAGE + "/policy?" + urllib.parse.urlencode({"from": HOSTILE, "to": "m1", "traffic": HOSTILE}))
    browser.says("# " + HOSTILE, "#lines")
    browser.says("<img src=x", "#mistakes")
    browser.says("No answer", "#answer")
    check("the question stays in its fields", browser.run("return document.getElementById('from').value") == HOSTILE)
    pages = ["/policy", "/log", "/joining", "/"]
    # A name of an administrator, and one of a machine. Both are refused, or are text.
    for command in [["web", "--json", "--name", HOSTILE], ["peer", "add", HOSTILE, "--conf", "-"]]:
        subprocess.run([RUSTGUARD, *command, "-i", "rgs"], capture_output=True)
    for page in pages:
        browser.go(PAGE + page)
        browser.says("Live", "#connection")
        foreign = browser.run("return document.querySelectorAll('img, main script, [onerror]').length")
        check(f"no markup of others on {page}", foreign == 0 and not browser.run("return 'evil' in window"), foreign)
    names = browser.text("#members")
    if "<" in names:
        subprocess.run([RUSTGUARD, "peer", "rm", HOSTILE, "-i", "rgs"], capture_output=True, check=True)
    POLICY.write_text(kept)
    print("hostile words: text", flush=True)


def attacks(browser, link):
    # The browser keeps connections that it does not use, and each would hold the others up.
    server = ThreadingHTTPServer(("127.0.0.1", 9599), Evil)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    browser.go(EVIL + "/form")
    until("the form has sent itself", lambda: browser.url().startswith(PAGE))
    browser.says("did not come from this page")
    # The same from a page of another name, which the browser would send here.
    browser.go(EVIL + "/frame")
    until("the frame has tried", lambda: browser.run("return document.title") == "loaded")
    call("POST", browser.at + "/frame", {"id": 0})
    check("the page is in no frame", not browser.has("#members") and not browser.has("header"))
    call("POST", browser.at + "/frame", {"id": None})
    try:
        urllib.request.urlopen(urllib.request.Request(PAGE + "/", headers={"Host": "evil.example:9580"}))
        raise SystemExit("the page is served under another name")
    except urllib.error.HTTPError as error:
        check("the page is not served under another name", error.code == 421, error.code)
    # A link that somebody has used, and whoever looks at it again.
    thief = new_link("thief")
    for turn in range(2):
        form = b"link=" + thief.rsplit("/", 1)[1].encode()
        request = urllib.request.Request(PAGE + "/login", form, {"Origin": PAGE})
        opener = urllib.request.build_opener(NoRedirect)
        try:
            opener.open(request)
            status = 200
        except urllib.error.HTTPError as error:
            status = error.code
        check("a link works once", status == (303 if turn == 0 else 403), status)
    server.shutdown()
    print("attacks: refused", flush=True)


class NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_):
        return None


def without_scripts():
    browser = Browser(scripts=False)
    log_in(browser, "plain")
    browser.says("m1", "#members")
    browser.follow("Policy")
    browser.write("#from", "m1" + TAB + "192.168.1.7" + TAB + "tcp/23" + ENTER)
    browser.says("No: from m1 to 192.168.1.7, tcp/23", "#answer")
    browser.follow("Joining")
    browser.click("#open")
    browser.says("The window is open.")
    check("a code and a picture of it", len(browser.text(".code")) == 9 and browser.has("svg.qr"))
    browser.follow("Reload")
    browser.says("Open for another")
    browser.click("#close-button")
    browser.says("The window is closed.", ".notice")
    browser.follow("Network")
    browser.follow("m1")
    browser.follow("Remove m1")
    browser.click("#remove")
    browser.says("m1 was removed.")
    check("it is gone", not browser.has("#members table"))
    browser.follow("Audit log")
    browser.says("web: plain#")
    browser.click(".logout button")
    browser.says("You have logged out.")
    browser.close()
    print("without scripts: all acts", flush=True)


def main():
    driver = subprocess.Popen(["chromedriver", "--port=9515", "--log-level=SEVERE"])
    try:
        until("the driver is ready", lambda: ready())
        with_scripts()
        without_scripts()
        (FOLDER / "done").write_text("done")
    finally:
        driver.terminate()
        driver.wait()


def ready():
    try:
        return call("GET", "/status")["ready"]
    except (urllib.error.URLError, ConnectionError):
        return False


main()
