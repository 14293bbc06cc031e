//! The cluster with all that faults need: proxies in front of every replica, a network and a file
//! system for each where that is possible, and a seat more than there are replicas.

use std::{path::Path, sync::Arc};

use anyhow::{Context, Result};
use tokio::net::TcpListener;

use super::{
    Address, Binary, Furnished, Options, Ports, READY_LIMIT, Rig, Seat, Volume, access_of,
    adopt_orphans, commands, ports, spaces,
};
use crate::{
    clock,
    enclosure::{self, Means},
    http::Http,
    net::{ByAddress, BySocket, Host, Net, Who},
};

/// Whether each replica has a file system of its own, where that is possible. Such a one has an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Disks {
    Own,
    Shared,
}

const LISTENS: Ports = Ports { peer: 7411, api: 7401 };

impl Rig {
    /// Makes a cluster in `dir`, wired for faults, and starts its replicas.
    pub(crate) async fn start_wired(
        binary: &Binary,
        dir: &Path,
        options: &Options,
        disks: Disks,
    ) -> Result<Self> {
        adopt_orphans()?;
        let mut means = Means::find();
        if disks == Disks::Shared {
            means.volumes = Err("file systems for each were not asked for".into());
        }
        let seats = options.replicas + 1;
        if means.spaces.is_ok() {
            let hosts: Vec<Host> =
                (0..seats).map(Host::Replica).chain((0..options.agents).map(Host::Agent)).collect();
            if let Err(error) = spaces::make(&hosts).await {
                means.spaces = Err(format!("{error:#}"));
                means.packets = means.spaces.clone();
            }
        }
        if means.spaces.is_err() && enclosure::is_inside() {
            // Without a network of its own it is up already.
            let _ = spaces::loopback().await;
        }
        let spaced = means.spaces.is_ok();
        let places = addresses(seats, spaced)?;
        let (cluster, logs, context_file) = folders(dir)?;
        let host = places.first().map(|(advertise, _)| advertise.host).context("no replicas")?;
        let advertised: Vec<Ports> =
            places.iter().take(options.replicas).map(|(advertise, _)| advertise.ports).collect();
        binary.run(&context_file, &commands::init_at(&cluster, host, &advertised)).await?;
        let mut access = access_of(&context_file)?;
        let mut all = Vec::new();
        for (place, (advertise, listen)) in places.into_iter().enumerate() {
            let volume = volume(dir, place, &mut means).await;
            let home = volume.as_ref().map_or(cluster.clone(), |volume| volume.mount.clone());
            let name = format!("replica-{}", place + 1);
            let within = if spaced { spaces::within(Host::Replica(place)) } else { vec![] };
            let furnished = Furnished { dir: home.join(&name), advertise, listen, volume, within };
            let sits = place < options.replicas;
            let id = if sits { place as u64 + 1 } else { 0 };
            let seat = Seat::new(place, id, binary, &logs, furnished);
            if sits {
                seat.move_in(&cluster.join(&name)).await?;
            } else {
                let api = advertise.sockets()[1];
                access.addresses.push(format!("https://{api}"));
            }
            all.push(seat);
        }
        let access = Arc::new(access);
        let who = Arc::new(BySocket::default());
        for seat in &all {
            let member = seat.member.clone();
            who.add(Host::Replica(seat.place), move || member.pid());
        }
        let asked: Box<dyn Who> =
            if spaced { Box::new(ByAddress(spaces::host)) } else { Box::new(who.clone()) };
        let net = Arc::new(Net::new(asked));
        for seat in &all {
            proxies(&net, seat).await?;
        }
        let http = Http::new(access.clone())?;
        let mut rig = Self::of(binary, dir, all, access, http);
        rig.wires = Some(super::Wires { net, who, means });
        rig.start_all()?;
        rig.until_ready(READY_LIMIT).await?;
        Ok(rig)
    }
}

/// `cluster`, `logs` and the context file.
fn folders(dir: &Path) -> Result<(std::path::PathBuf, std::path::PathBuf, std::path::PathBuf)> {
    let logs = dir.join("logs");
    std::fs::create_dir_all(&logs).context("cannot make the logs' directory")?;
    Ok((dir.join("cluster"), logs, dir.join("contexts.toml")))
}

/// Where each is looked for, and where it listens.
fn addresses(seats: usize, spaced: bool) -> Result<Vec<(Address, Address)>> {
    let pair = |pair: &[u16]| match pair {
        [peer, api] => Some(Ports { peer: *peer, api: *api }),
        _ => None,
    };
    let free = ports::free(seats * 4)?;
    let free: Vec<Ports> = free.chunks_exact(2).filter_map(pair).collect();
    let both = free.chunks_exact(2).enumerate().filter_map(|(place, both)| {
        let [advertise, listen] = both else { return None };
        if spaced {
            let host = spaces::address(Host::Replica(place));
            let advertise = Address { host: spaces::HUB, ports: *advertise };
            return Some((advertise, Address { host, ports: LISTENS }));
        }
        Some((Address::local(*advertise), Address::local(*listen)))
    });
    Ok(both.collect())
}

async fn volume(dir: &Path, place: usize, means: &mut Means) -> Option<Volume> {
    means.volumes.as_ref().ok()?;
    let home = dir.join(format!("volumes/{}", place + 1));
    match Volume::make(&home).await {
        Ok(volume) => Some(volume),
        Err(error) => {
            means.volumes = Err(format!("{error:#}"));
            None
        }
    }
}

async fn proxies(net: &Arc<Net>, seat: &Seat) -> Result<()> {
    for (at, upstream) in seat.advertise.sockets().into_iter().zip(seat.listen.sockets()) {
        let listener = TcpListener::bind(at)
            .await
            .with_context(|| format!("a proxy cannot listen at {at}"))?;
        let host = Host::Replica(seat.place);
        drop(clock::spawn(net.clone().serve(listener, host, upstream)));
    }
    Ok(())
}
