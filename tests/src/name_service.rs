//! A stand-in for systemd-resolved that records the settings of links.
use crate::{Lab, Node, Process, eventually};
use anyhow::{Context as _, Result};
use futures_util::StreamExt as _;
use std::{
    fs,
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};
use zbus::{Connection, MessageStream, connection, message::Type};

/// The path of the system bus. The scenario has its own `/run`.
const BUS: &str = "/run/dbus/system_bus_socket";

/// A system bus with a service in place of systemd-resolved. Both end when it is dropped.
#[derive(Debug)]
pub struct NameService {
    told: Arc<Mutex<Vec<String>>>,
    refuses: Arc<AtomicBool>,
    _bus: Process,
}

impl NameService {
    /// Starts both. `None` if there is no dbus-daemon.
    pub fn start(lab: &Lab, node: &Node) -> Result<Option<Self>> {
        if node.sh("command -v dbus-daemon").is_err() {
            lab.skip("systemd-resolved over D-Bus: there is no dbus-daemon");
            return Ok(None);
        }
        fs::create_dir_all(Path::new(BUS).parent().context("a folder")?)?;
        let address = format!("unix:path={BUS}");
        let mut command = node.command("dbus-daemon");
        let bus = node.spawn("dbus", command.args(["--session", "--nofork", &format!("--address={address}")]))?;
        eventually("the bus", Duration::from_secs(20), || Ok(std::os::unix::net::UnixStream::connect(BUS).is_ok()))?;
        let told = Arc::new(Mutex::new(Vec::new()));
        let refuses = Arc::new(AtomicBool::new(false));
        let (notes, refused) = (told.clone(), refuses.clone());
        let (ready, is_ready) = mpsc::channel();
        // The thread ends with the bus.
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let bus = connection::Builder::address(&*address).build().await?;
                let messages = MessageStream::from(&bus);
                bus.request_name("org.freedesktop.resolve1").await?;
                ready.send(())?;
                note(&bus, messages, &notes, &refused).await
            })
        });
        is_ready.recv().context("a name on the bus")?;
        Ok(Some(Self { told, refuses, _bus: bus }))
    }

    /// From now on, answers every call with an error.
    pub fn refuse(&self) {
        self.refuses.store(true, Ordering::Relaxed);
    }

    /// The calls since the last time: the method, and its arguments after the number of the link.
    pub fn told(&self) -> Vec<String> {
        std::mem::take(&mut *self.told.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

async fn note(
    bus: &Connection,
    mut messages: MessageStream,
    told: &Mutex<Vec<String>>,
    refuses: &AtomicBool,
) -> Result<()> {
    while let Some(message) = messages.next().await {
        let message = message?;
        let header = message.header();
        let (Type::MethodCall, Some(method)) = (message.message_type(), header.member()) else { continue };
        let body = message.body();
        let arguments = match method.as_str() {
            "SetLinkDNS" => {
                let (_, servers): (i32, Vec<(i32, Vec<u8>)>) = body.deserialize()?;
                let servers = servers.iter().map(|(_, bytes)| bytes.iter().map(u8::to_string).collect::<Vec<_>>());
                servers.map(|bytes| format!(" {}", bytes.join("."))).collect()
            }
            "SetLinkDomains" => {
                let (_, domains): (i32, Vec<(String, bool)>) = body.deserialize()?;
                domains.iter().map(|(domain, routes)| format!(" {}{domain}", if *routes { "~" } else { "" })).collect()
            }
            "SetLinkDefaultRoute" => format!(" {}", body.deserialize::<(i32, bool)>()?.1),
            _ => String::new(),
        };
        told.lock().unwrap_or_else(PoisonError::into_inner).push(format!("{method}{arguments}"));
        if refuses.load(Ordering::Relaxed) {
            bus.reply_error(&header, "org.freedesktop.resolve1.Refused", &"a test says so").await?;
        } else {
            bus.reply(&header, &()).await?;
        }
    }
    Ok(())
}
