use palisade_state::step::StepRuntime;

use super::*;

const ID: &str = "0af7651916cd43dd8448eb211c80319c";
const SPAN: &str = "b7ad6b7169203331";

/// `traceparent`, and whether it is one: the rules of the W3C Recommendation of November 2021, section 3.2.
const PARENTS: &[(&str, bool)] = &[
    ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", true),
    ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00", true),
    // Flags that version 00 does not have are no error.
    ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-ff", true),
    // A higher version is read as far as it is known, and what follows begins with a dash.
    ("01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", true),
    ("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what-the-future-adds", true),
    ("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-", true),
    ("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01.what-the-future-adds", false),
    ("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-011", false),
    // Version 00 has exactly four parts, and ff is no version.
    ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more", false),
    ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-", false),
    ("ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", false),
    // All zero means none.
    ("00-00000000000000000000000000000000-b7ad6b7169203331-01", false),
    ("00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01", false),
    // Upper case, letters that are no digits, lengths.
    ("00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01", false),
    ("00-0af7651916cd43dd8448eb211c80319c-B7AD6B7169203331-01", false),
    ("00-0af7651916cd43dd8448eb211c80319g-b7ad6b7169203331-01", false),
    ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0g", false),
    ("0x-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", false),
    ("00-0af7651916cd43dd8448eb211c80319-b7ad6b7169203331-01", false),
    ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b716920333-01", false),
    ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-1", false),
    ("00-0af7651916cd43dd8448eb211c80319cb-7ad6b7169203331-01", false),
    ("0-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", false),
    ("00_0af7651916cd43dd8448eb211c80319c_b7ad6b7169203331_01", false),
    (" 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", false),
    ("+0-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", false),
    ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331", false),
    ("00", false),
    ("", false),
];

fn headers(given: &[(&str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in given {
        let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
        headers.append(name, HeaderValue::from_str(value).unwrap());
    }
    headers
}

fn of(given: &[(&str, &str)]) -> Trace {
    Trace::of(&headers(given), &*StepRuntime::new(1))
}

fn told(trace: &Trace) -> (String, String) {
    let mut headers = HeaderMap::new();
    trace.put(&mut headers);
    let text = |name: &HeaderName| headers.get(name).map_or("", |value| value.to_str().unwrap());
    (text(&TRACEPARENT).to_owned(), text(&TRACESTATE).to_owned())
}

#[test]
fn a_trace_is_taken_up_by_the_rules_and_otherwise_begun() {
    for (text, fits) in PARENTS {
        let trace = of(&[("traceparent", text)]);
        assert_eq!((trace.id == ID) && trace.parent.as_deref() == Some(SPAN), *fits, "{text:?}");
        assert_eq!(trace.parent.is_some(), *fits, "{text:?}");
        let (parent, _) = told(&trace);
        assert!(super::parent(&parent).is_some(), "{text:?} is told on as {parent}");
        assert_ne!(trace.span, SPAN, "each request is a span of its own");
    }
}

#[test]
fn it_is_told_on_in_version_00_with_the_flag_that_it_has() {
    for (flags, sampled) in [("01", true), ("00", false), ("ff", true), ("fe", false)] {
        let trace = of(&[("traceparent", &format!("cc-{ID}-{SPAN}-{flags}-x"))]);
        let flags = if sampled { "01" } else { "00" };
        assert_eq!(told(&trace).0, format!("00-{ID}-{}-{flags}", trace.span));
    }
}

#[test]
fn two_parents_are_none() {
    let text = format!("00-{ID}-{SPAN}-01");
    let trace = of(&[("traceparent", &text), ("traceparent", &text)]);
    assert_eq!(trace.parent, None);
}

#[test]
fn a_state_is_passed_on_whole_or_not_at_all() {
    let long = "x".repeat(256);
    let many = |count: usize| (0..count).map(|n| format!("k{n}=v")).collect::<Vec<_>>().join(",");
    let (most, too_many) = (many(32), many(33));
    let (value, too_long) = (format!("a={long}"), format!("a={long}x"));
    for (given, passed) in [
        ("rojo=00f067aa0ba902b7,congo=t61rcWkgMzE", "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"),
        ("a=1 , b=2,\t", "a=1,b=2"),
        ("fw529a3039@dt=FfAAA,a_-*/=!~ x", "fw529a3039@dt=FfAAA,a_-*/=!~ x"),
        ("0tenant@sys=1", "0tenant@sys=1"),
        (&most, &most),
        (&value, &value),
        ("", ""),
        ("a", ""),
        ("a=", ""),
        ("=1", ""),
        ("A=1", ""),
        ("0=1", ""),
        ("a=1=2", ""),
        ("a b=1", ""),
        ("a@=1", ""),
        ("@a=1", ""),
        ("a@0=1", ""),
        ("a@sixteenletterssy=1", ""),
        ("a=1,b=2,a=3", ""),
        (&too_many, ""),
        (&too_long, ""),
    ] {
        let parent = format!("00-{ID}-{SPAN}-01");
        let trace = of(&[("traceparent", &parent), ("tracestate", given)]);
        assert_eq!(told(&trace).1, passed, "{given:?}");
        assert_eq!(trace.id, ID, "the trace goes on without");
        assert_eq!(told(&of(&[("tracestate", given)])).1, "", "it belongs to a trace");
    }
    let parts = [
        ("traceparent", &*format!("00-{ID}-{SPAN}-01")),
        ("tracestate", "a=1"),
        ("tracestate", "b=2"),
    ];
    assert_eq!(told(&of(&parts)).1, "a=1,b=2");
}
