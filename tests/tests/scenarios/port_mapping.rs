//! How a node behind a router becomes reachable: by a router that maps a UDP port on request (miniupnpd, with each of
//! the protocols), and by addresses in the file.
use anyhow::{Context as _, Result, ensure};
use rustguard_tests::{Conf, Lab, Node, PeerConf, Process, Up, eventually, paths, scenario_of_rustguard};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(30);
/// The beginning of an endpoint at the router. (miniupnpd refuses documentation addresses.)
const OUTSIDE: &str = "25.0.0.2:";

/// A node at home, behind a NAT router that uses another port for each peer, and a node outside.
struct Home {
    home: Node,
    router: Node,
    office: Node,
}

impl Home {
    fn new(lab: &Lab) -> Result<Self> {
        let (home, router, office) = (lab.node("home")?, lab.node("router")?, lab.node("office")?);
        lab.link((&home, "eth0"), (&router, "lan"))?;
        lab.link((&router, "wan"), (&office, "eth0"))?;
        home.sh("ip addr add 192.168.1.11/24 dev eth0; ip route add default via 192.168.1.1")?;
        office.sh("ip addr add 25.0.0.1/24 dev eth0")?;
        router.sh("ip addr add 192.168.1.1/24 dev lan; ip addr add 25.0.0.2/24 dev wan
sysctl -qw net.ipv4.ip_forward=1
nft -f - <<'RULES'
table inet upnp {
    chain input { type filter hook input priority 0; iifname wan meta l4proto udp ct state new drop; }
    chain forward { type filter hook forward priority 0; jump mapped_in; iifname wan meta l4proto udp ct state new ct status ! dnat drop; }
    chain mapped_in { }
    chain before { type nat hook prerouting priority -100; jump mapped; }
    chain mapped { }
    chain after { type nat hook postrouting priority 100; jump peers; oifname wan meta l4proto udp masquerade random,persistent; }
    chain peers { }
}
RULES")?;
        Ok(Self { home, router, office })
    }

    /// Starts miniupnpd with these lines in its file.
    fn serve(&self, lab: &Lab, lines: &str) -> Result<Process> {
        let file = lab.file(
            "miniupnpd.conf",
            &format!(
                "ext_ifname=wan\nlistening_ip=lan\nport=5000\nsecure_mode=yes\nuuid=00000000-0000-0000-0000-000000000000\n\
                 upnp_table_name=upnp\nupnp_nat_table_name=upnp\nupnp_forward_chain=mapped_in\nupnp_nat_chain=mapped\n\
                 upnp_nat_postrouting_chain=peers\nallow 1024-65535 0.0.0.0/0 1024-65535\n{lines}"
            ),
        )?;
        let pid = lab.path("miniupnpd.pid");
        let daemon = self
            .router
            .spawn("miniupnpd", self.router.command("miniupnpd").arg("-d").arg("-f").arg(&file).arg("-P").arg(&pid))?;
        let ready = if lines.contains("enable_natpmp=yes") { "Listening for NAT-PMP" } else { "HTTP listening" };
        eventually("miniupnpd is ready", SOON, || Ok(daemon.log().contains(ready))).with_context(|| daemon.log())?;
        Ok(daemon)
    }

    /// The router's port forwarding rules.
    fn rules(&self) -> Result<String> {
        self.router.run(&["nft", "list", "chain", "inet", "upnp", "mapped"])
    }

    fn is_mapped(&self) -> Result<bool> {
        Ok(self.rules()?.contains(" dnat ip to 192.168.1.11:51820"))
    }

    /// Both ends look for direct paths. The tunnel at home starts the search.
    fn start(&self, lab: &Lab, lines: &[&str]) -> Result<(Up, Up)> {
        self.start_both(lab, lines, &[])
    }

    /// The same, with lines for the office as well.
    fn start_both(&self, lab: &Lab, lines: &[&str], there: &[&str]) -> Result<(Up, Up)> {
        let (mut home, mut office) = (Conf::new("wgh")?, Conf::new("wgo")?);
        (home.listen_port, office.listen_port) = (Some(51_820), Some(51_820));
        home.addresses = vec!["10.9.0.1/24".into()];
        office.addresses = vec!["10.9.0.2/24".into()];
        home.lines = lines.iter().map(|line| (*line).to_owned()).collect();
        office.lines = there.iter().map(|line| (*line).to_owned()).collect();
        let mut to_office = PeerConf::new(&office.keys.public, "10.9.0.2/32");
        to_office.endpoint = Some("25.0.0.1:51820".into());
        to_office.lines = vec!["Direct = on".into()];
        let mut to_home = PeerConf::new(&home.keys.public, "10.9.0.1/32");
        to_home.lines = vec!["Direct = on".into()];
        (home.peers, office.peers) = (vec![to_office], vec![to_home]);
        let office = Up::start(lab, &self.office, &office)?;
        let home = Up::start(lab, &self.home, &home)?;
        self.home.reaches("10.9.0.2", 10)?;
        Ok((home, office))
    }

    /// Whether the office has found the mapped address, and it works.
    fn found(&self) -> Result<bool> {
        self.home.reaches("10.9.0.2", 10)?;
        let (paths, rules) = (paths(&self.office, "wgo")?, self.rules()?);
        Ok(paths.iter().filter(|path| path["found"] == true && path["state"] == "up").any(|path| {
            let port = path["endpoint"].as_str().and_then(|endpoint| endpoint.strip_prefix(OUTSIDE));
            port.is_some_and(|port| rules.contains(&format!("dport {port} dnat ip to 192.168.1.11:51820")))
        }))
    }

    fn until_found(&self) -> Result<()> {
        eventually("the office reaches the port that the router maps", SOON, || self.found())
            .with_context(|| format!("{:?}\n{:?}", paths(&self.office, "wgo"), self.rules()))
    }
}

/// A scenario that needs miniupnpd.
fn ours<F: FnOnce(&Lab) -> Result<()>>(body: F) {
    scenario_of_rustguard("ports mapped at a router", body);
}

fn maps(lab: &Lab, lines: &str) -> Result<()> {
    lab.needs("miniupnpd", "miniupnpd-nftables")?;
    let network = Home::new(lab)?;
    let _daemon = network.serve(lab, lines)?;
    let (home, _office) = network.start(lab, &[])?;
    network.until_found()?;
    ensure!(network.is_mapped()?, "{}", network.rules()?);
    // The port is closed then, and another program may use it.
    network.home.sh("ip link set wgh down")?;
    eventually("the mapping is taken back", SOON, || Ok(!network.is_mapped()?))
        .with_context(|| format!("{:?}", network.rules()))?;
    network.home.sh("ip link set wgh up")?;
    eventually("the port is mapped again", SOON, || network.is_mapped())
        .with_context(|| format!("{:?}", network.rules()))?;
    home.down()?;
    // At its end, the program waits for the router only briefly, and the router may be slower.
    eventually("the router has removed the mapping", SOON, || Ok(!network.is_mapped()?))
        .with_context(|| format!("{:?}", network.rules()))?;
    Ok(())
}

#[test]
fn a_port_is_mapped_by_pcp_and_the_mapping_ends_with_the_tunnel() {
    ours(|lab| maps(lab, "enable_natpmp=yes\nenable_upnp=no\n"));
}

#[test]
fn a_port_is_mapped_by_upnp_and_the_mapping_ends_with_the_tunnel() {
    ours(|lab| maps(lab, "enable_natpmp=no\nenable_upnp=yes\n"));
}

#[test]
fn the_router_is_not_asked_where_the_file_forbids_it() {
    ours(|lab| {
        lab.needs("miniupnpd", "miniupnpd-nftables")?;
        let network = Home::new(lab)?;
        network.router.count("asked", "input", "iifname lan udp dport { 5351, 1900 }")?;
        let _daemon = network.serve(lab, "enable_natpmp=yes\nenable_upnp=yes\n")?;
        network.office.count("tried", "output", "ip daddr 25.0.0.2 udp dport 9")?;
        let (_home, _office) = network.start(lab, &["PortMapping = off", "PublicEndpoint = 25.0.0.2:9"])?;
        // The router would have been asked before the peer learns which address to try.
        eventually("the office tries what the file says", SOON, || {
            network.home.reaches("10.9.0.2", 10)?;
            Ok(network.office.counted("tried")? > 0)
        })?;
        ensure!(network.router.counted("asked")? == 0 && !network.is_mapped()?, "{}", network.rules()?);
        Ok(())
    });
}

/// No AllowedIPs cover the address, but a manually added route leads it into the tunnel.
#[test]
fn an_address_that_the_routes_lead_into_the_tunnel_is_not_probed() {
    scenario_of_rustguard("direct paths", |lab| {
        let network = Home::new(lab)?;
        network.office.count("tried", "output", "ip daddr 25.0.0.2 udp dport 9")?;
        network.office.sh(
            "nft add counter inet lab inside; nft add rule inet lab output ip daddr 10.77.0.9 counter name inside",
        )?;
        let post_up = "PostUp = ip route add 10.77.0.0/24 dev wgo";
        let (_home, _office) =
            network.start_both(lab, &["PortMapping = off", "PublicEndpoint = 10.77.0.9:9, 25.0.0.2:9"], &[post_up])?;
        eventually("the office tries the other place", SOON, || {
            network.home.reaches("10.9.0.2", 10)?;
            Ok(network.office.counted("tried")? > 1)
        })?;
        ensure!(network.office.counted("inside")? == 0, "probes went into the tunnel");
        Ok(())
    });
}
