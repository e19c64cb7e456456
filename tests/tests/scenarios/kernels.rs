//! Kernels with fewer features: a library loaded before libc refuses the calls that such kernels would refuse.
use anyhow::{Context, Result, ensure};
use rustguard_tests::{
    INSIDE_B, Lab, Outside, Pair, Process, Program, Subject, Tunnel, scenario, spawn_until_ready, subject,
};
use std::{fs, path::PathBuf, process::Command, time::Duration};

const SOON: Duration = Duration::from_secs(20);

/// `KERNEL_TUN` is a mask of TUN_F_…: other flags are refused with EINVAL, as by kernels without them. With
/// `KERNEL_UDP=plain`, UDP_SEGMENT and UDP_GRO are refused with ENOPROTOOPT.
const LIBRARY: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <linux/if_tun.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

int ioctl(int fd, unsigned long request, ...) {
    va_list rest;
    va_start(rest, request);
    void *argument = va_arg(rest, void *);
    va_end(rest);
    const char *known = getenv("KERNEL_TUN");
    if (known && request == TUNSETOFFLOAD && ((unsigned long)argument & ~strtoul(known, 0, 0))) {
        fprintf(stderr, "refused TUNSETOFFLOAD %p\n", argument);
        errno = EINVAL;
        return -1;
    }
    int (*real)(int, unsigned long, ...) = dlsym(RTLD_NEXT, "ioctl");
    return real(fd, request, argument);
}

int setsockopt(int fd, int level, int option, const void *value, socklen_t length) {
    /* UDP_SEGMENT and UDP_GRO */
    if (getenv("KERNEL_UDP") && level == IPPROTO_UDP && (option == 103 || option == 104)) {
        fprintf(stderr, "refused the UDP option %d\n", option);
        errno = ENOPROTOOPT;
        return -1;
    }
    int (*real)(int, int, int, const void *, socklen_t) = dlsym(RTLD_NEXT, "setsockopt");
    return real(fd, level, option, value, length);
}
"#;

/// Builds the library.
fn library(lab: &Lab) -> Result<PathBuf> {
    lab.needs("cc", "build-essential")?;
    let (source, built) = (lab.file("kernel.c", LIBRARY)?, lab.path("kernel.so"));
    let compiled = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&built, &source]).arg("-ldl").output()?;
    ensure!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    Ok(built)
}

/// On such a kernel, a tunnel with `refused` in its log transfers bulk data in both directions with wireguard-go.
fn works(lab: &Lab, kernel: &[(&str, &str)], refused: &str) -> Result<()> {
    if subject() == Subject::WireguardGo {
        lab.skip("a Go program calls no libc that could be replaced: wireguard-go is the subject");
        return Ok(());
    }
    let library = library(lab)?;
    let pair = Pair::new(lab, Outside::V4)?;
    let _b = Tunnel::start(lab, &pair.b, Program::Reference, &pair.conf_b)?;
    let file = lab.file("wga.conf", &pair.conf_a.wg_quick())?;
    let mut command = pair.a.rustguard()?;
    command.arg("up").arg(file).env("LD_PRELOAD", library).envs(kernel.iter().copied());
    let up = spawn_until_ready(lab, &pair.a, "wga", &mut command)?;
    ensure!(up.log().contains(refused), "nothing was refused: {}", up.log());
    for address in INSIDE_B {
        pair.a.reaches(address, 10)?;
        for direction in [&[][..], &["-R"]] {
            bulk(&pair, address, direction)?;
        }
        // Datagrams that are sent and received in batches: all 1,000 arrive.
        bulk(&pair, address, &["-u", "-b", "20M", "-l", "1200", "-k", "1000"])?;
    }
    ensure!(fs::exists(format!("/proc/{}", up.id()))?, "it has ended: {}", up.log());
    Ok(())
}

/// 4 MB, or the amount in the options.
fn bulk(pair: &Pair, address: &str, options: &[&str]) -> Result<()> {
    let mut command = pair.b.command("iperf3");
    let mut server: Process = pair.b.spawn("iperf3", command.args(["-s", "-1", "-p", "5001"]))?;
    server.until("iperf3 listens", SOON, || Ok(!pair.b.run(&["ss", "-Hltn", "sport = 5001"])?.trim().is_empty()))?;
    let mut arguments = vec!["iperf3", "-c", address, "-p", "5001", "--connect-timeout", "5000"];
    arguments.extend(options);
    if !options.contains(&"-k") {
        arguments.extend(["-n", "4M"]);
    }
    pair.a.run(&arguments).with_context(|| format!("{address} {options:?}"))?;
    server.ended(SOON).map(drop)
}

/// Before Linux 6.2: super-packets for TCP only.
#[test]
fn without_uso() {
    scenario(|lab| works(lab, &[("KERNEL_TUN", "0x1f")], "refused TUNSETOFFLOAD"));
}

/// Only checksum offload, no super-packets.
#[test]
fn without_tso() {
    scenario(|lab| works(lab, &[("KERNEL_TUN", "0x01")], "refused TUNSETOFFLOAD"));
}

#[test]
fn without_any_offload_of_the_tun() {
    scenario(|lab| works(lab, &[("KERNEL_TUN", "0")], "refused TUNSETOFFLOAD"));
}

/// Before Linux 4.18 (UDP_SEGMENT) and 5.0 (UDP_GRO).
#[test]
fn without_segmentation_of_udp() {
    scenario(|lab| works(lab, &[("KERNEL_UDP", "plain")], "refused the UDP option"));
}

#[test]
fn without_anything() {
    scenario(|lab| works(lab, &[("KERNEL_TUN", "0"), ("KERNEL_UDP", "plain")], "refused TUNSETOFFLOAD"));
}
