//! Users by name or number, from the system's own file.

use std::fs;

/// A user as a process is to have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) name: String,
    pub(crate) home: String,
}

/// The user of that name or number, or `None`.
pub(crate) fn lookup(wanted: &str) -> Option<User> {
    find(&fs::read_to_string("/etc/passwd").unwrap_or_default(), wanted)
}

fn find(passwd: &str, wanted: &str) -> Option<User> {
    let by_number = wanted.parse::<u32>().ok();
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, _, uid, gid, _, home) = (
            fields.next()?,
            fields.next()?,
            fields.next()?.parse::<u32>().ok()?,
            fields.next()?.parse::<u32>().ok()?,
            fields.next()?,
            fields.next()?,
        );
        (name == wanted || by_number == Some(uid)).then(|| User {
            uid,
            gid,
            name: name.to_owned(),
            home: home.to_owned(),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::find;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nweb:x:33:34:Web:/var/www:/bin/false\n";

    #[test]
    fn users_are_found_by_name_and_by_number() {
        assert_eq!(find(PASSWD, "web").map(|user| (user.uid, user.gid)), Some((33, 34)));
        assert_eq!(find(PASSWD, "33").map(|user| user.name), Some("web".to_owned()));
        assert_eq!(find(PASSWD, "nobody-here"), None);
    }
}
