//! Faults of the network between replicas and agents.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use anyhow::{Result, bail};

use super::{Injected, Tools, granted, place, processes::agent_of};
use crate::{
    clock,
    net::{Cut, Host, Net, Pair, Rule, one_way, partition},
    rig::{self, Rig},
    schedule::{Fault, Target},
};

fn member_names(rig: &Rig, places: &[usize]) -> Vec<String> {
    let name = |place: &usize| rig.replicas.get(*place).map(|member| member.name.clone());
    places.iter().filter_map(name).collect()
}

/// The replica in the middle of it.
async fn focus(tools: &Tools, injected: &mut Injected) -> Result<usize> {
    let focus = place(&tools.rig, injected.planned.target).await?;
    injected.began_ms = tools.clock.millis();
    injected.hit = member_names(&tools.rig, &[focus]);
    Ok(focus)
}

fn rules(pairs: impl IntoIterator<Item = Pair>, rule: Rule) -> BTreeMap<Pair, Rule> {
    pairs.into_iter().map(|pair| (pair, rule)).collect()
}

/// All links between replicas, and of them all with agents.
fn links(rig: &Rig) -> BTreeSet<Pair> {
    let replicas: Vec<Host> = rig.places().into_iter().map(Host::Replica).collect();
    let agents = (0..rig.agents.len()).map(Host::Agent);
    let hosts: Vec<Host> = replicas.iter().copied().chain(agents).collect();
    let mut links = BTreeSet::new();
    for one in &hosts {
        for other in replicas.iter().filter(|other| *other != one) {
            links.insert((*one, *other));
            links.insert((*other, *one));
        }
    }
    links
}

fn touches(focus: usize) -> impl Fn(Pair) -> bool + Copy {
    let me = Host::Replica(focus);
    move |(from, to)| from == me || to == me
}

/// Holds bytes, or drops packets, on some links.
pub(super) async fn cut(tools: &Tools, injected: &mut Injected) -> Result<()> {
    let planned = injected.planned;
    let wires = tools.wires()?;
    if planned.fault == Fault::Packets {
        granted(&wires.means.packets)?;
    }
    let focus = focus(tools, injected).await?;
    let (places, pick) = (tools.rig.places(), planned.pick);
    if places.len() < 2 {
        bail!("there is only one replica");
    }
    let one_way_only = match planned.fault {
        Fault::OneWay => true,
        Fault::Packets => pick >> 32 & 1 == 1,
        _ => false,
    };
    let Cut { pairs, shape } = if one_way_only {
        one_way(&places, focus, pick)
    } else {
        partition(&places, focus, tools.rig.agents.len(), pick)
    };
    injected.note = format!("{shape}: {}", describe(&pairs));
    if planned.fault == Fault::Packets {
        let ports =
            |host: Host| match host {
                Host::Replica(place) => tools.rig.seats.get(place).map_or(vec![], |seat| {
                    vec![seat.advertise.ports.peer, seat.advertise.ports.api]
                }),
                Host::Agent(_) => vec![],
            };
        let hosts = rig::drop_packets(&pairs, ports).await?;
        clock::sleep_ms(planned.lasts_ms).await;
        rig::deliver_packets(&hosts).await;
    } else {
        let token = wires.net.begin(rules(pairs, Rule::CUT));
        clock::sleep_ms(planned.lasts_ms).await;
        wires.net.end(&token);
    }
    Ok(())
}

/// In few words: `1-2 1>3`.
fn describe(pairs: &BTreeSet<Pair>) -> String {
    let name = |host: &Host| match host {
        Host::Replica(place) => format!("{}", place + 1),
        Host::Agent(place) => format!("a{}", place + 1),
    };
    let words = pairs.iter().filter_map(|(from, to)| {
        let both = pairs.contains(&(*to, *from));
        match (both, from < to) {
            (true, true) => Some(format!("{}-{}", name(from), name(to))),
            (true, false) => None,
            (false, _) => Some(format!("{}>{}", name(from), name(to))),
        }
    });
    words.collect::<Vec<String>>().join(" ")
}

/// Cuts an agent from all replicas.
pub(super) async fn cut_agent(tools: &Tools, injected: &mut Injected) -> Result<()> {
    let wires = tools.wires()?;
    let agent = agent_of(tools, injected.planned.target)?;
    injected.begin(tools, [&agent]);
    let Target::Agent(index) = injected.planned.target else { bail!("this hits an agent") };
    let me = Host::Agent(index);
    let all = links(&tools.rig).into_iter().filter(|(from, to)| *from == me || *to == me);
    let token = wires.net.begin(rules(all, Rule::CUT));
    clock::sleep_ms(injected.planned.lasts_ms).await;
    wires.net.end(&token);
    Ok(())
}

/// Lets bytes take longer.
pub(super) async fn delay(tools: &Tools, injected: &mut Injected) -> Result<()> {
    let net = &tools.wires()?.net;
    let focus = focus(tools, injected).await?;
    let pick = injected.planned.pick;
    let delay = 5_000 + pick / 4 % 145_000;
    let rule = Rule { cut: false, delay, jitter: pick / 4 / 145_000 % (delay + 1) };
    let everywhere = pick & 1 == 1;
    let hit = touches(focus);
    let pairs = links(&tools.rig).into_iter().filter(|pair| everywhere || hit(*pair));
    injected.note = format!(
        "{} ms and up to {} more on {}",
        rule.delay / 1000,
        rule.jitter / 1000,
        if everywhere { "all links" } else { "its links" }
    );
    if everywhere {
        injected.hit = member_names(&tools.rig, &tools.rig.places());
    }
    let token = net.begin(rules(pairs, rule));
    clock::sleep_ms(injected.planned.lasts_ms).await;
    net.end(&token);
    Ok(())
}

/// Stops the links of one replica and lets them go, again and again.
pub(super) async fn stutter(tools: &Tools, injected: &mut Injected) -> Result<()> {
    let net = &tools.wires()?.net;
    let focus = focus(tools, injected).await?;
    let planned = injected.planned;
    let hit = touches(focus);
    let mut pick = planned.pick;
    let until_ms = tools.clock.millis() + planned.lasts_ms;
    let mut stops = 0;
    while tools.clock.millis() < until_ms {
        let pairs = links(&tools.rig).into_iter().filter(|pair| hit(*pair));
        let token = net.begin(rules(pairs, Rule::CUT));
        clock::sleep_ms(50 + pick % 350).await;
        net.end(&token);
        pick = pick.rotate_left(9);
        clock::sleep_ms(50 + pick % 350).await;
        pick = pick.rotate_left(9);
        stops += 1;
    }
    injected.note = format!("{stops} stops");
    Ok(())
}

/// Ends the connections of one replica, again and again.
pub(super) async fn reset(tools: &Tools, injected: &mut Injected) -> Result<()> {
    let net = &tools.wires()?.net;
    let focus = focus(tools, injected).await?;
    let until_ms = tools.clock.millis() + injected.planned.lasts_ms;
    let mut ended = 0;
    loop {
        ended += net.reset(touches(focus));
        if tools.clock.millis() >= until_ms {
            break;
        }
        clock::sleep_ms(250).await;
    }
    injected.note = format!("{ended} connections ended");
    some(ended)
}

fn some(connections: usize) -> Result<()> {
    if connections == 0 {
        bail!("there was no connection");
    }
    Ok(())
}

/// Lets what was sent on old connections arrive after what is sent on new ones.
pub(super) async fn overtake(tools: &Tools, injected: &mut Injected) -> Result<()> {
    let net: &Arc<Net> = &tools.wires()?.net;
    let focus = focus(tools, injected).await?;
    let planned = injected.planned;
    let held = net.hold(touches(focus));
    injected.note = format!("{} connections", held.count());
    clock::sleep_ms(planned.lasts_ms / 4).await;
    held.cut_off();
    clock::sleep_ms(planned.lasts_ms - planned.lasts_ms / 4).await;
    held.release();
    some(held.count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_are_told_in_few_words() {
        let (one, two, agent) = (Host::Replica(0), Host::Replica(1), Host::Agent(0));
        let pairs = [(one, two), (two, one), (agent, one)].into();
        assert_eq!(describe(&pairs), "1-2 a1>1");
    }
}
