//! How names may look.

/// Group and method names that would collide with what clients' languages give a meaning to.
const RESERVED_NAMES: [&str; 8] =
    ["then", "catch", "finally", "toJSON", "constructor", "prototype", "__proto__", "plugins"];

/// How [`is_slug`] is told.
pub(super) const SLUG: &str = "^[a-z][a-z0-9-]{0,63}$";
/// How [`is_table`] is told.
pub(super) const TABLE: &str = "^[a-z][a-z0-9_-]{0,95}$";

fn starts_and_goes_on(
    text: &str,
    max: usize,
    first: impl Fn(u8) -> bool,
    rest: impl Fn(u8) -> bool,
) -> bool {
    let mut bytes = text.bytes();
    text.len() <= max && bytes.next().is_some_and(first) && bytes.all(rest)
}

fn is_small(b: u8) -> bool {
    b.is_ascii_lowercase() || b.is_ascii_digit()
}

/// `^[a-z][a-z0-9-]{0,63}$`: modules, plugins, areas, verbs, lanes, resource types.
pub(super) fn is_slug(text: &str) -> bool {
    starts_and_goes_on(text, 64, |b| b.is_ascii_lowercase(), |b| is_small(b) || b == b'-')
}

/// `^[a-z][a-z0-9_-]{0,95}$`: neither the kernel's names, which have a dot, nor an index's, which has a `#`.
pub(super) fn is_table(text: &str) -> bool {
    let rest = |b| is_small(b) || matches!(b, b'_' | b'-');
    starts_and_goes_on(text, 96, |b| b.is_ascii_lowercase(), rest)
}

/// `^[A-Za-z][A-Za-z0-9_-]{0,63}$`, and none of the reserved ones.
pub(super) fn is_method_name(text: &str) -> bool {
    let rest = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-');
    starts_and_goes_on(text, 64, |b| b.is_ascii_alphabetic(), rest)
        && !RESERVED_NAMES.contains(&text)
}

/// `^[0-9a-z][0-9a-z.-]{0,31}$`: versions of extensions.
pub(super) fn is_version(text: &str) -> bool {
    starts_and_goes_on(text, 32, is_small, |b| is_small(b) || matches!(b, b'.' | b'-'))
}

/// The number of a migration that is named `<owner>/<nnnn>_<slug>`.
pub(super) fn migration_number(name: &str, owner: &str) -> Option<u32> {
    let (digits, slug) = name.strip_prefix(owner)?.strip_prefix('/')?.split_once('_')?;
    let well_formed = digits.len() == 4
        && digits.bytes().all(|b| b.is_ascii_digit())
        && starts_and_goes_on(slug, 96, is_small, |b| is_small(b) || matches!(b, b'_' | b'-'));
    well_formed.then(|| digits.parse().ok()).flatten()
}

/// The parameters of a path in order, or what is wrong with it.
pub(super) fn parameters(path: &str) -> Result<Vec<&str>, String> {
    let Some(segments) = path.strip_prefix('/') else {
        return Err("it does not begin with a slash".to_owned());
    };
    let mut found = vec![];
    for segment in segments.split('/') {
        let parameter = segment.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
        let is_well_formed = match parameter {
            Some(name) => starts_and_goes_on(
                name,
                64,
                |b| b.is_ascii_lowercase(),
                |b| b.is_ascii_alphanumeric(),
            ),
            None => starts_and_goes_on(
                segment,
                64,
                |b| b.is_ascii_alphanumeric(),
                |b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'),
            ),
        };
        if !is_well_formed {
            return Err(format!("{segment:?} is neither a word nor a {{parameter}}"));
        }
        if let Some(name) = parameter {
            if found.contains(&name) {
                return Err(format!("the parameter {name} is there twice"));
            }
            found.push(name);
        }
    }
    Ok(found)
}

/// Two paths that differ in the names of their parameters alone are one route.
pub(super) fn without_parameter_names(path: &str) -> String {
    let segments = path.split('/').map(|s| if s.starts_with('{') { "{}" } else { s });
    segments.collect::<Vec<_>>().join("/")
}
