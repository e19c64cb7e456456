//! The kernel's announcements about the interface and the network around it.

use super::*;
use std::{future::poll_fn, pin::pin, task::Poll};

#[test]
fn the_monitor_sees_the_interface_and_the_network() {
    in_namespace!(the_monitor_sees_the_interface_and_the_network, async {
        host();
        assert!(link_exists("wg0").await.unwrap());
        let index = link_index("wg0").await.unwrap().unwrap();
        let mut monitor = Monitor::new(index).await.unwrap();
        sh("ip link set wg0 mtu 1280");
        assert_eq!(monitor.next().await, Some(HostEvent::LinkMtu(1280)));
        sh("ip link set wg0 up");
        assert_eq!(monitor.next().await, Some(HostEvent::LinkUp));
        // Changes of the interface itself are not network changes; the following ones are.
        sh("ip addr add 10.9.0.2/24 dev wg0; ip route add 10.20.0.0/16 dev wg0; ip link set wg0 mtu 1290");
        assert_eq!(monitor.next().await, Some(HostEvent::LinkNetwork("10.9.0.2/24".parse().unwrap(), true)));
        assert_eq!(monitor.next().await, Some(HostEvent::LinkMtu(1290)));
        sh("ip route add 10.30.0.0/16 dev up0");
        assert_eq!(monitor.next().await, Some(HostEvent::NetworkChanged));
        sh("ip link set wg0 down");
        loop {
            match monitor.next().await {
                Some(HostEvent::NetworkChanged) => {}
                event => break assert_eq!(event, Some(HostEvent::LinkDown)),
            }
        }

        // When a port leaves a bridge, the bridge also announces it as deleted.
        sh("ip link add br0 type bridge; ip link set isp0 master br0");
        let mut port = Monitor::new(link_index("isp0").await.unwrap().unwrap()).await.unwrap();
        sh("ip link set isp0 nomaster; ip link set isp0 mtu 1300");
        loop {
            match port.next().await {
                Some(HostEvent::NetworkChanged) => {}
                event => break assert_eq!(event, Some(HostEvent::LinkMtu(1300))),
            }
        }

        let gone = tokio::spawn(wait_link_gone("wg0"));
        assert!(delete_link("wg0").await.unwrap());
        gone.await.unwrap().unwrap();
        assert!(!delete_link("wg0").await.unwrap());
        while monitor.next().await != Some(HostEvent::LinkDeleted) {}
        assert_eq!(monitor.next().await, None);
        let mut late = Monitor::new(index).await.unwrap();
        assert_eq!(late.next().await, Some(HostEvent::LinkDeleted));
    });
}

#[test]
fn what_was_announced_before_the_monitor_asked_is_no_event() {
    in_namespace!(what_was_announced_before_the_monitor_asked_is_no_event, async {
        host();
        let index = link_index("wg0").await.unwrap().unwrap();
        let mut starting = pin!(Monitor::new(index));
        // It subscribes at once. Its request waits for the runtime, which has only this thread.
        assert!(poll_fn(|context| Poll::Ready(starting.as_mut().poll(context))).await.is_pending());
        sh("ip link set wg0 mtu 1290; ip link set wg0 up");
        let mut monitor = starting.await.unwrap();
        assert_eq!(monitor.mtu(), Some(1290));
        sh("ip link set wg0 mtu 1300");
        loop {
            match monitor.next().await {
                Some(HostEvent::NetworkChanged) => {}
                event => break assert_eq!(event, Some(HostEvent::LinkMtu(1300))),
            }
        }
    });
}
