//! Certificates for the tests, made by openssl.

use crate::process::{give, program};
use std::{fs, path::Path, process::Command};

/// Makes an authority, a certificate for 127.0.0.1 and one for the client `rustguard`, as PEM: `ca`, `server` and
/// `client`, each with `.pem` and `.key`, and an authority `other.pem` of its own. None without openssl.
pub(crate) fn certificates(folder: &Path) -> Option<()> {
    let openssl = program("openssl", "openssl")?;
    let run = |arguments: &str| {
        let made = Command::new(&openssl).args(arguments.split(' ')).current_dir(folder).output().unwrap();
        assert!(made.status.success(), "openssl {arguments}: {}", String::from_utf8_lossy(&made.stderr));
    };
    const KEY: &str = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -sha256 -days 2";
    for name in ["ca", "other"] {
        run(&format!("req -x509 {KEY} -keyout {name}.key -out {name}.pem -subj /CN={name}"));
    }
    fs::write(
        folder.join("server.ext"),
        "subjectAltName=IP:127.0.0.1,DNS:localhost\nextendedKeyUsage=serverAuth,clientAuth\n",
    )
    .unwrap();
    fs::write(folder.join("client.ext"), "extendedKeyUsage=clientAuth\n").unwrap();
    for (name, subject) in [("server", "127.0.0.1"), ("client", "rustguard")] {
        run(&format!("req {KEY} -keyout {name}.key -out {name}.csr -subj /CN={subject}"));
        run(&format!(
            "x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile {name}.ext -out {name}.pem"
        ));
    }
    for file in ["server.key", "server.pem", "ca.pem"] {
        give(&folder.join(file));
    }
    Some(())
}
