//! What this machine is: facts from /proc and /sys, and what the operator configured.

use std::{
    collections::BTreeSet,
    fs,
    net::{IpAddr, UdpSocket},
    path::Path,
};

use palisade_proto::agent::{Disk, Interface, Inventory};

use crate::{
    config::{Config, split_server},
    driver::{SharedDriver, boot_id_or_empty, interface_addresses},
};

/// The facts without the drivers'.
#[must_use]
pub fn collect(config: &Config) -> Inventory {
    let cpu = Cpu::parse(&text("/proc/cpuinfo"));
    Inventory {
        hostname: text("/proc/sys/kernel/hostname"),
        os: os_name(&text("/etc/os-release")),
        kernel: text("/proc/sys/kernel/osrelease"),
        arch: std::env::consts::ARCH.to_owned(),
        product_uuid: product_uuid(&text("/sys/class/dmi/id/product_uuid")),
        boot_id: boot_id_or_empty(),
        cpu_model: cpu.model,
        sockets: cpu.sockets,
        cores: cpu.cores,
        threads: cpu.threads,
        memory_bytes: memory_bytes(&text("/proc/meminfo")),
        disks: disks(Path::new("/sys/block")),
        interfaces: interfaces(Path::new("/sys/class/net")),
        drivers: Vec::new(),
        port_first: u32::from(config.port_first),
        port_last: u32::from(config.port_last),
        address: address(config),
        labels: config.labels.clone().into_iter().collect(),
        isolation: Default::default(),
        offered_cpu_milli: config.offered_cpu_milli,
        offered_memory_bytes: config.offered_memory_bytes,
    }
}

/// The facts with what the drivers can do.
#[must_use]
pub fn with_drivers(config: &Config, drivers: &[SharedDriver]) -> Inventory {
    let mut inventory = collect(config);
    for driver in drivers {
        inventory.drivers.push(driver.name().to_owned());
        if driver.takes_secrets() {
            inventory.drivers.push(format!("{}.secrets", driver.name()));
        }
        inventory.isolation.extend(driver.isolation());
    }
    inventory
}

/// The facts of now, with what drivers said before.
#[must_use]
pub fn refresh(config: &Config, before: &Inventory) -> Inventory {
    Inventory {
        drivers: before.drivers.clone(),
        isolation: before.isolation.clone(),
        ..collect(config)
    }
}

fn text(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

fn os_name(release: &str) -> String {
    let value = |key: &str| {
        release
            .lines()
            .find_map(|line| line.strip_prefix(key))
            .map(|v| v.trim_matches('"').to_owned())
    };
    value("PRETTY_NAME=").or_else(|| value("NAME=")).unwrap_or_else(|| "Linux".to_owned())
}

/// Lower case, or empty when it is one of the constants that boards are shipped with.
fn product_uuid(raw: &str) -> String {
    let uuid = raw.to_ascii_lowercase();
    let digits: String = uuid.chars().filter(char::is_ascii_hexdigit).collect();
    let constant = digits.len() != 32
        || digits.bytes().all(|byte| byte == b'0')
        || digits.bytes().all(|byte| byte == b'f')
        || uuid.starts_with("03000200-0400-0500-0006-00070008000");
    if constant { String::new() } else { uuid }
}

fn memory_bytes(meminfo: &str) -> u64 {
    let kib = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = kib.and_then(|rest| rest.split_ascii_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Cpu {
    model: String,
    sockets: u32,
    cores: u32,
    threads: u32,
}

impl Cpu {
    fn parse(cpuinfo: &str) -> Self {
        let mut cpu = Self::default();
        let mut sockets = BTreeSet::new();
        let mut cores = BTreeSet::new();
        let (mut socket, mut core) = (String::new(), String::new());
        for line in cpuinfo.lines().chain([""]) {
            let (key, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.trim().to_owned();
            match key.trim() {
                "processor" => {
                    cpu.threads += 1;
                    core.clone_from(&value);
                }
                "model name" | "Model" if cpu.model.is_empty() => cpu.model = value,
                "physical id" => socket = value,
                "core id" => core = value,
                "" if !core.is_empty() => {
                    sockets.insert(socket.clone());
                    cores.insert((std::mem::take(&mut socket), std::mem::take(&mut core)));
                }
                _ => {}
            }
        }
        cpu.threads = cpu.threads.max(1);
        cpu.sockets = u32::try_from(sockets.len()).unwrap_or(1).max(1);
        cpu.cores = u32::try_from(cores.len()).unwrap_or(1).max(1);
        cpu
    }
}

fn disks(block: &Path) -> Vec<Disk> {
    let mut names = names(block);
    names.retain(|name| {
        !["loop", "ram", "zram", "dm-", "md", "sr", "fd"].iter().any(|kind| name.starts_with(kind))
    });
    let number = |path: std::path::PathBuf| {
        fs::read_to_string(path).ok().and_then(|text| text.trim().parse::<u64>().ok())
    };
    names
        .into_iter()
        .map(|name| Disk {
            size_bytes: number(block.join(&name).join("size")).unwrap_or(0) * 512,
            rotational: number(block.join(&name).join("queue/rotational")) == Some(1),
            name,
        })
        .collect()
}

fn interfaces(net: &Path) -> Vec<Interface> {
    let addresses = interface_addresses().unwrap_or_default();
    let read =
        |path: std::path::PathBuf| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let found = names(net).into_iter().filter(|name| name != "lo").map(|name| {
        let dir = net.join(&name);
        let index = read(dir.join("ifindex")).parse::<u32>().unwrap_or(0);
        let list = addresses.get(&index).into_iter().flatten();
        Interface {
            mac: read(dir.join("address")),
            addresses: list.map(IpAddr::to_string).collect(),
            name,
        }
    });
    found.collect()
}

fn names(dir: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let mut names: Vec<String> =
        entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// What the operator said, else the address that packets to the control plane leave from.
fn address(config: &Config) -> String {
    if !config.address.is_empty() {
        return config.address.clone();
    }
    // Connecting a datagram socket sends nothing; it only asks the routing table.
    let towards = |server: &String| {
        let (host, port) = split_server(server)?;
        let host: IpAddr = host.parse().ok()?;
        let any: IpAddr = if host.is_ipv4() { [0, 0, 0, 0].into() } else { [0u16; 8].into() };
        let socket = UdpSocket::bind((any, 0)).ok()?;
        socket.connect((host, port)).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    let found = config.servers.iter().find_map(towards).or_else(|| {
        let all = interface_addresses().ok()?;
        all.into_values().flatten().find(|ip| ip.is_ipv4() && !ip.is_loopback())
    });
    found.map_or_else(|| "127.0.0.1".to_owned(), |ip| ip.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_cores_and_sockets_are_told_apart() {
        let one = |n: u32, socket: u32, core: u32| {
            format!("processor : {n}\nmodel name : X\nphysical id : {socket}\ncore id : {core}\n\n")
        };
        let info = [one(0, 0, 0), one(1, 0, 1), one(2, 0, 0), one(3, 1, 0)].concat();
        let cpu = Cpu::parse(&info);
        assert_eq!(cpu, Cpu { model: "X".into(), sockets: 2, cores: 3, threads: 4 });
    }

    #[test]
    fn constants_are_no_identity() {
        assert_eq!(product_uuid("00000000-0000-0000-0000-000000000000"), "");
        assert_eq!(product_uuid("FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF"), "");
        assert_eq!(product_uuid("03000200-0400-0500-0006-000700080009"), "");
        assert_eq!(
            product_uuid("4C4C4544-0051-3510-8052-B4C04F4E4E31"),
            "4c4c4544-0051-3510-8052-b4c04f4e4e31"
        );
    }

    #[test]
    fn this_machine_has_memory_threads_and_an_address() {
        let inventory = collect(&Config::new("/tmp"));
        assert!(inventory.memory_bytes > 0 && inventory.threads > 0);
        assert!(inventory.address.parse::<IpAddr>().is_ok());
        assert!(!inventory.kernel.is_empty() && !inventory.hostname.is_empty());
    }
}
