use super::*;

#[test]
fn the_command_is_well_formed() {
    command().debug_assert();
}

#[test]
fn the_help_is_as_it_was() {
    let mut command = command().term_width(100);
    let mut text = command.render_long_help().to_string();
    let nouns = [
        "node",
        "workload",
        "instance",
        "command",
        "token",
        "api-token",
        "principal",
        "role",
        "binding",
        "tenant",
        "approval",
        "cluster",
        "dev",
        "agent",
    ];
    for noun in nouns {
        let sub = command.find_subcommand_mut(noun).unwrap();
        text.push_str(&format!("\n# {noun}\n{}", sub.render_help()));
    }
    insta::assert_snapshot!(text);
}

#[test]
fn every_verb_has_help() {
    fn walk(command: &clap::Command, path: &str) {
        assert!(command.get_about().is_some(), "{path} says nothing");
        for sub in command.get_subcommands() {
            walk(sub, &format!("{path} {}", sub.get_name()));
        }
    }
    walk(&command(), "palisade");
}

#[test]
fn an_unknown_verb_is_answered_with_the_near_one() {
    let said = |args: &[&str]| near(Cli::try_parse_from(args).unwrap_err()).to_string();
    for (args, near) in [
        (&["palisade", "workload", "aply"][..], "'apply'"),
        (&["palisade", "wrokload"], "'workload'"),
        (&["palisade", "cluster", "repiar"], "'repair'"),
        (&["palisade", "cluster", "recovr"], "'recover'"),
    ] {
        assert!(said(args).contains(near), "{}", said(args));
    }
    // Alike by a tool's measure, and not what a person meant.
    for args in [&["palisade", "cluster", "prepare"][..], &["palisade", "cluster", "leave"]] {
        assert!(!said(args).contains("similar"), "{}", said(args));
    }
}

#[test]
fn json_is_asked_for_also_on_a_line_that_cannot_be_read() {
    let asks = |line: &str| {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        asks_for_json(&words)
    };
    for line in
        ["palisade -o json nod ls", "palisade node ls --nope --output=json", "palisade x -ojson y"]
    {
        assert!(asks(line), "{line}");
    }
    for line in ["palisade node ls", "palisade -o yaml nod", "palisade nod json -o"] {
        assert!(!asks(line), "{line}");
    }
}

#[test]
fn durations_and_sizes_have_units() {
    assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
    assert_eq!(duration("2h"), Ok(Duration::from_secs(7200)));
    assert_eq!(duration("30"), Ok(Duration::from_secs(30)));
    assert!(
        duration("5x").is_err() && duration("").is_err() && duration("99999999999999d").is_err()
    );
    assert_eq!(size("4GiB"), Ok(4 << 30));
    assert_eq!(size("5GB"), Ok(5_000_000_000));
    assert!(size("lots").is_err());
}

#[test]
fn what_is_no_number_is_told_in_plain_words() {
    for (args, why) in [
        (&["palisade", "cluster", "remove", "two"][..], "it must be a whole number"),
        (&["palisade", "cluster", "remove", "99999999999999999999999"], "out of range"),
        (&["palisade", "event", "ls", "--from", "1x"], "it must be a whole number"),
        (&["palisade", "cluster", "transfer-leader", "0"], "0 is not in 1.."),
    ] {
        let said = plain(Cli::try_parse_from(args).unwrap_err()).to_string();
        let usage = format!("Usage: {}", args[..3].join(" "));
        assert!(said.starts_with("error: invalid") && said.contains(why), "{said}");
        assert!(said.contains(&usage) || said.contains("For more information"), "{said}");
    }
}
