//! Users and groups: their names, and their members.

/// The number by which a user namespace shows unmapped owners: no user in it has that number.
pub(super) fn unmapped_user() -> u32 {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    unmapped_user_in(&read("/proc/self/uid_map"), &read("/proc/sys/kernel/overflowuid"))
}

/// If a known user has that number, returns a number that no user has.
fn unmapped_user_in(map: &str, overflow: &str) -> u32 {
    let Ok(number) = overflow.trim().parse::<u32>() else { return u32::MAX };
    let known = map.lines().map(|line| {
        let mut fields = line.split_whitespace().map(|field| field.parse::<u32>().ok());
        let (first, _, count) = (fields.next()??, fields.next()??, fields.next()??);
        Some(first <= number && number - first < count)
    });
    match known.collect::<Option<Vec<_>>>() {
        Some(known) if !known.is_empty() && !known.contains(&true) => number,
        _ => u32::MAX,
    }
}

/// Whether a group has no member but this user, as on systems where each user has a group of their own.
pub(super) fn is_own_group(user: u32, group: u32) -> bool {
    is_own_group_in(&lines_of("/etc/passwd"), &lines_of("/etc/group"), user, group)
}

fn is_own_group_in(users: &[Vec<String>], groups: &[Vec<String>], user: u32, group: u32) -> bool {
    let number = |line: &[String], at: usize| line.get(at).and_then(|text| text.parse().ok());
    let Some(name) = users.iter().find(|line| number(line, 2) == Some(user)).map(|line| &line[0])
    else {
        return false;
    };
    let of_group = |line: &&Vec<String>| number(line, 3) == Some(group);
    let mut primary = users.iter().filter(of_group).peekable();
    let Some(listed) = groups.iter().find(|line| number(line, 2) == Some(group)) else {
        return false;
    };
    let members = listed.get(3).map_or("", String::as_str);
    primary.peek().is_some()
        && primary.all(|line| number(line, 2) == Some(user))
        && members.split(',').all(|member| member.is_empty() || member == name)
}

/// The lines of a system file, each as its fields.
fn lines_of(path: &str) -> Vec<Vec<String>> {
    let text = std::fs::read(path).unwrap_or_default();
    fields_of(&String::from_utf8_lossy(&text))
}

fn fields_of(text: &str) -> Vec<Vec<String>> {
    text.lines().map(|line| line.split(':').map(str::to_owned).collect()).collect()
}

/// The name for a number in a system file; the number if there is none.
pub(super) fn name_of(path: &str, number: u32) -> String {
    let number = number.to_string();
    let named = lines_of(path).into_iter().find(|line| line.get(2) == Some(&number));
    named.map_or(number, |mut line| line.swap_remove(0))
}

/// A user in a message.
pub(super) fn user(number: u32) -> String {
    format!("user {}", name_of("/etc/passwd", number))
}

/// A group in a message.
pub(super) fn group(number: u32) -> String {
    format!("group {}", name_of("/etc/group", number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unmapped_user_is_trusted_only_if_no_user_has_its_id() {
        let one = "         0       1000          1\n";
        assert_eq!(unmapped_user_in(one, "65534\n"), 65534);
        assert_eq!(unmapped_user_in("0 1000 1\n1 100000 65533\n", "65534"), 65534);
        for known in [
            "0 0 4294967295\n",
            "0 1000 1\n1 100000 65536\n",
            "0 1000 1\n65534 7 1\n",
            "0 1000 1\n1 100000 65534\n",
            "",
            "what",
        ] {
            assert_eq!(unmapped_user_in(known, "65534"), u32::MAX, "{known:?}");
        }
        assert_eq!(unmapped_user_in(one, ""), u32::MAX);
    }

    #[test]
    fn private_group_has_only_its_user() {
        let users = fields_of(
            "root:x:0:0::/root:/bin/sh\nann:x:1000:1000::/home/ann:/bin/sh\n\
             bob:x:1001:1001::/home/bob:/bin/sh\neve:x:1002:1003::/:/bin/sh\nzoe:x:1003:1003::/:/bin/sh\n\n+\n",
        );
        let groups =
            fields_of("root:x:0:\nann:x:1000:ann\nbob:x:1001:ann,bob\nboth:x:1003:\nempty:x:7:\n");
        let own = |user, group| is_own_group_in(&users, &groups, user, group);
        assert!(own(1000, 1000));
        assert!(!own(1001, 1001), "ann is in it too");
        assert!(!own(1002, 1003), "zoe is in it too");
        for (user, group) in [(1000, 7), (1000, 0), (1000, 99), (99, 1000), (99, 99)] {
            assert!(!own(user, group), "{user} {group}");
        }
    }
}
