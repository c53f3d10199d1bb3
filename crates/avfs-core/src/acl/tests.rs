use super::*;
use proptest::prelude::*;

fn hex(text: &str) -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(digit).collect()
}

fn acl(text: &str) -> Acl {
    Acl::parse(&hex(text)).unwrap().unwrap()
}

/// What Linux itself did with random ACLs on ext4, one call a line; see the head of the file.
const LINUX: &str = include_str!("linux.txt");

#[test]
fn does_what_linux_does() {
    let mut lines = 0;
    for line in LINUX.lines().filter(|line| !line.starts_with('#')) {
        let fields: Vec<&str> = line.split(' ').collect();
        let mode = |field: &str| u16::from_str_radix(field, 8).unwrap();
        let expected = |acl: &str, bits: &str| (if acl == "-" { None } else { Some(hex(acl)) }, mode(bits));
        match fields[..] {
            ["inherit", default, asked, access, result] => {
                let (inherited, permissions) = acl(default).inherit(mode(asked));
                let actual = (inherited.map(|acl| acl.to_bytes()), permissions);
                assert_eq!(actual, expected(access, result), "{line}");
            }
            ["set", new, before, access, result] => {
                let (kept, permissions) = acl(new).set_access(mode(before), true);
                assert_eq!((kept.map(|acl| acl.to_bytes()), permissions), expected(access, result), "{line}");
            }
            ["chmod", old, asked, access, result] => {
                let mut changed = acl(old);
                changed.chmod(mode(asked));
                assert_eq!((Some(changed.to_bytes()), mode(asked)), expected(access, result), "{line}");
                assert_eq!(changed.permissions(), mode(result) & 0o777, "{line}");
            }
            ["parse", bytes, outcome] => {
                let cause = match Acl::parse(&hex(bytes)) {
                    Ok(_) => "ok",
                    Err(AclError::Name { id, .. }) if id != UNDEFINED_ID => {
                        // The one rule that Linux does not have.
                        assert_eq!(outcome, "ok", "{line}");
                        continue;
                    }
                    Err(error) if Error::from(error) == Error::Unsupported => "EOPNOTSUPP",
                    Err(_) => "EINVAL",
                };
                assert_eq!(cause, outcome, "{line}");
            }
            _ => panic!("{line}"),
        }
        lines += 1;
    }
    assert!(lines > 100);
}

fn entry(tag: u16, permissions: u16, id: u32) -> Vec<u8> {
    [&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &id.to_le_bytes()].concat()
}

fn parse(entries: &[Vec<u8>]) -> Result<Option<Acl>, AclError> {
    Acl::parse(&[&VERSION.to_le_bytes()[..], &entries.concat()].concat())
}

#[test]
fn each_broken_rule_has_its_cause() {
    let [owner, group, other] = [tag::OWNER, tag::GROUP, tag::OTHER].map(|tag| entry(tag, 7, UNDEFINED_ID));
    let mask = entry(tag::MASK, 5, 0);
    let user = |id| entry(tag::USER, 4, id);
    let named_group = |id| entry(tag::NAMED_GROUP, 4, id);
    let list = |entries: &[&Vec<u8>]| entries.iter().map(|entry| entry.to_vec()).collect::<Vec<_>>();
    let cause = |entries: &[&Vec<u8>]| parse(&list(entries)).unwrap_err();

    assert_eq!(parse(&[]), Ok(None));
    assert!(parse(&list(&[&owner, &group, &other])).unwrap().is_some());
    assert!(parse(&list(&[&owner, &user(2), &user(1), &group, &named_group(1), &mask, &other])).is_ok());

    assert_eq!(Acl::parse(&[2, 0, 0]), Err(AclError::Length(3)));
    assert_eq!(Acl::parse(&[2, 0, 0, 0, 1]), Err(AclError::Length(5)));
    assert_eq!(Acl::parse(&[1, 0, 0, 0]), Err(AclError::Version(1)));
    assert_eq!(cause(&[&entry(3, 0, 0)]), AclError::Tag(3));
    assert_eq!(cause(&[&entry(tag::OWNER, 8, 0)]), AclError::Permissions(8));
    assert_eq!(cause(&[&group]), AclError::Order(tag::GROUP));
    assert_eq!(cause(&[&owner, &owner]), AclError::Order(tag::OWNER));
    assert_eq!(cause(&[&owner, &group, &user(1)]), AclError::Order(tag::USER));
    assert_eq!(cause(&[&owner, &group, &mask, &named_group(1)]), AclError::Order(tag::NAMED_GROUP));
    assert_eq!(cause(&[&owner, &group, &mask, &mask]), AclError::Order(tag::MASK));
    assert_eq!(cause(&[&owner, &other]), AclError::Order(tag::OTHER));
    assert_eq!(cause(&[&owner, &group, &other, &other]), AclError::Order(tag::OTHER));
    assert_eq!(cause(&[&owner, &group]), AclError::NoOther);
    assert_eq!(cause(&[&owner, &user(1), &group, &other]), AclError::NoMask);
    let twice = cause(&[&owner, &user(1), &user(2), &user(1), &group, &mask, &other]);
    assert_eq!(twice, AclError::Name { tag: tag::USER, id: 1 });
    let nobody = cause(&[&owner, &group, &named_group(UNDEFINED_ID), &mask, &other]);
    assert_eq!(nobody, AclError::Name { tag: tag::NAMED_GROUP, id: UNDEFINED_ID });
}

#[test]
fn setgid_goes_with_an_acl_set_by_a_stranger_to_the_group() {
    let three = parse(&[entry(tag::OWNER, 7, 0), entry(tag::GROUP, 5, 0), entry(tag::OTHER, 1, 0)]);
    let three = three.unwrap().unwrap();
    assert_eq!(three.equivalent_mode(), Some(0o751));
    assert_eq!(three.clone().set_access(0o6600, true), (None, 0o6751));
    assert_eq!(three.set_access(0o6600, false), (None, 0o4751));
}

fn any_acl() -> impl Strategy<Value = Acl> {
    let names = || {
        proptest::collection::btree_map(0..UNDEFINED_ID, 0u8..8, 0..5).prop_map(|names| {
            names.into_iter().map(|(id, permissions)| Named { id, permissions }).collect::<Box<[_]>>()
        })
    };
    let three = (0u8..8, 0u8..8, 0u8..8);
    (three, names(), names(), proptest::option::of(0u8..8)).prop_map(
        |((owner, group, other), users, groups, mask)| {
            let mask = if users.is_empty() && groups.is_empty() { mask } else { mask.or(Some(7)) };
            Acl { owner, users, group, groups, mask, other }
        },
    )
}

proptest! {
    #[test]
    fn what_is_written_is_read(acl in any_acl()) {
        let bytes = acl.to_bytes();
        prop_assert_eq!(bytes.len(), HEADER_BYTES + ENTRY_BYTES * acl.entries());
        prop_assert_eq!(Acl::parse(&bytes), Ok(Some(acl)));
    }

    #[test]
    fn any_bytes_are_an_acl_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
        if let Ok(Some(acl)) = Acl::parse(&bytes) {
            prop_assert_eq!(Acl::parse(&acl.to_bytes()), Ok(Some(acl)));
        }
    }

    /// Bytes that are nearly right reach deeper than arbitrary ones.
    #[test]
    fn entries_in_any_order_are_an_acl_or_an_error(
        entries in proptest::collection::vec((0u32..8, 0u16..9, 0u32..3), 0..8),
    ) {
        let entries: Vec<_> = entries.into_iter().map(|(shift, bits, id)| entry(1 << shift, bits, id)).collect();
        if let Ok(Some(acl)) = parse(&entries) {
            prop_assert_eq!(Acl::parse(&acl.to_bytes()), Ok(Some(acl)));
        }
    }

    #[test]
    fn nobody_inherits_more_than_both_permit(acl in any_acl(), asked in 0u16..0o10000) {
        let (access, mode) = acl.inherit(asked);
        prop_assert_eq!(mode & 0o777, asked & acl.permissions());
        prop_assert_eq!(mode & !0o777, asked & !0o777);
        prop_assert_eq!(access.is_none(), acl.equivalent_mode().is_some());
        if let Some(access) = access {
            prop_assert_eq!(access.permissions(), mode & 0o777);
            prop_assert_eq!((access.users, access.groups), (acl.users, acl.groups));
        }
    }

    #[test]
    fn after_chmod_the_bits_are_those_asked_for(acl in any_acl(), mode in 0u16..0o10000) {
        let mut changed = acl.clone();
        changed.chmod(mode);
        prop_assert_eq!(changed.permissions(), mode & 0o777);
        prop_assert_eq!(changed.entries(), acl.entries());
    }
}
