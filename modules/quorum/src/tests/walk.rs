//! A long walk at random, against a model that knows nothing of the module.

use std::collections::BTreeSet;

use serde_json::json;

use super::world::World;

struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

const PEOPLE: [&str; 4] = ["ada", "bob", "carol", "dave"];

/// What is known of one batch without looking.
struct Model {
    id: String,
    thing: String,
    creator: usize,
    required: usize,
    approved: BTreeSet<usize>,
    state: &'static str,
}

struct Walk {
    world: World,
    bound: [bool; 4],
    required: usize,
    all: Vec<Model>,
}

impl Walk {
    fn ask(&mut self, who: usize) {
        let thing = format!("t{}", self.all.len());
        if !self.bound[who] {
            self.world.thing(&thing, "ok");
            assert!(self.world.ask(PEOPLE[who], &[&thing]).is_err());
            return;
        }
        let id = self.world.asked(PEOPLE[who], &[&thing]);
        let required = self.required;
        self.all.push(Model {
            id,
            thing,
            creator: who,
            required,
            approved: BTreeSet::new(),
            state: "held",
        });
    }

    fn approve(&mut self, who: usize, at: usize) {
        let bound = self.bound;
        let one = &mut self.all[at];
        let done = self.world.approve(PEOPLE[who], &one.id);
        if one.state != "held" || !bound[who] || who == one.creator {
            let again = one.state == "released" && bound[who] && one.approved.contains(&who);
            assert_eq!(done.is_ok(), again, "{done:?}");
            return;
        }
        one.approved.insert(who);
        if one.approved.iter().filter(|who| bound[**who]).count() >= one.required {
            one.state = if bound[one.creator] { "released" } else { "failed" };
        }
    }

    fn end(&mut self, who: usize, at: usize, withdraws: bool) {
        let bound = self.bound[who];
        let one = &mut self.all[at];
        let method = if withdraws { "approvals.withdraw" } else { "approvals.reject" };
        let done = self.world.as_who(PEOPLE[who], method, &json!({ "approval": one.id }));
        let may = one.state == "held" && bound && (who == one.creator) == withdraws;
        assert_eq!(done.is_ok(), may, "{done:?}");
        if may {
            one.state = if withdraws { "withdrawn" } else { "rejected" };
        }
    }

    fn rebind(&mut self, who: usize) {
        if self.bound[who] {
            self.world.unbind(PEOPLE[who]);
        } else {
            let bound = json!({"principal": PEOPLE[who], "role": "operator", "tenant": "acme"});
            self.world.call("roleBindings.create", &bound);
        }
        self.bound[who] = !self.bound[who];
    }

    fn check(&self) {
        for one in &self.all {
            assert_eq!(self.world.state(&one.id), one.state, "{}", one.id);
            assert_eq!(self.world.has(&one.thing), one.state != "released", "QUO-1, QUO-2");
        }
    }
}

#[test]
fn a_thing_is_gone_exactly_when_its_batch_was_released() {
    let mut ends = BTreeSet::new();
    for seed in 1..=6 {
        let world = World::new();
        world.policy(&[(1, 2)]);
        let mut walk = Walk { world, bound: [true; 4], required: 2, all: vec![] };
        let mut dice = Dice(seed);
        for _ in 0..150 {
            let who = usize::try_from(dice.below(4)).unwrap();
            let at = usize::try_from(dice.below(walk.all.len().max(1) as u64)).unwrap();
            match dice.below(16) {
                0..=2 => walk.ask(who),
                3 => walk.rebind(who),
                4 => {
                    walk.required = usize::try_from(1 + dice.below(3)).unwrap();
                    walk.world.policy(&[(1, u32::try_from(walk.required).unwrap())]);
                }
                5 if !walk.all.is_empty() => walk.end(who, at, dice.below(2) == 0),
                _ if !walk.all.is_empty() => walk.approve(who, at),
                _ => {}
            }
        }
        walk.check();
        ends.extend(walk.all.iter().map(|one| one.state));
    }
    assert_eq!(
        ends.into_iter().collect::<Vec<_>>(),
        ["failed", "held", "rejected", "released", "withdrawn"]
    );
}
