//! The terms of the API as types. Each is validated once, when it is made, and cannot hold an invalid value
//! after that. An error names the value and the remedy.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// A value that one of the types here refused. The message names it and says what is allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid(String);
impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Invalid {}

/// What is locked: 1–512 bytes of UTF-8 without control characters, such as `invoice/42`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockName(Arc<str>);

impl LockName {
    /// The longest name, in bytes.
    pub const MAX_BYTES: usize = 512;

    /// Validates `name`.
    pub fn new(name: &str) -> Result<Self, Invalid> {
        checked_text("lock name", name, Self::MAX_BYTES).map(Self)
    }

    /// Shows the name of a third-party client's lock that is not a valid name: control characters and backslashes are escaped,
    /// and it is cut to length. No call can name that lock; with this name it finds another one, or none.
    #[must_use]
    pub fn escaped(name: &str) -> Self {
        const CUT: &str = "...";
        let mut shown = String::new();
        for character in name.chars() {
            let plain = !character.is_control() && character != '\\';
            let text: String =
                if plain { character.into() } else { character.escape_default().collect() };
            if shown.len() + text.len() > Self::MAX_BYTES - CUT.len() {
                shown.push_str(CUT);
                break;
            }
            shown.push_str(&text);
        }
        Self(if shown.is_empty() { "(empty)".into() } else { shown.into() })
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The holder, for people: `host:pid`, or what the caller set. 1–256 bytes, no control characters.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Label(Arc<str>);

impl Label {
    /// The longest label, in bytes.
    pub const MAX_BYTES: usize = 256;

    /// Validates `label`.
    pub fn new(label: &str) -> Result<Self, Invalid> {
        checked_text("label", label, Self::MAX_BYTES).map(Self)
    }

    /// The label as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn checked_text(what: &str, text: &str, max: usize) -> Result<Arc<str>, Invalid> {
    if text.is_empty() {
        return Err(Invalid(format!("the {what} is empty: give 1 to {max} bytes of text")));
    }
    if text.len() > max {
        let start: String = text.chars().take(24).collect();
        return Err(Invalid(format!(
            "the {what} \"{}...\" has {} bytes: use at most {max}",
            start.escape_debug(),
            text.len()
        )));
    }
    if let Some(bad) = text.chars().find(|c| c.is_control()) {
        return Err(Invalid(format!(
            "the {what} \"{}\" contains the control character U+{:04X}: remove it",
            text.escape_debug(),
            u32::from(bad)
        )));
    }
    Ok(Arc::from(text))
}

macro_rules! shown_as_text {
    ($type:ident) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }
        impl FromStr for $type {
            type Err = Invalid;
            fn from_str(text: &str) -> Result<Self, Invalid> {
                Self::new(text)
            }
        }
    };
}
shown_as_text!(LockName);
shown_as_text!(Label);

/// What a leader publishes: an address, a version, anything of at most 4 KiB.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Value(Arc<[u8]>);

impl Value {
    /// The longest value, in bytes.
    pub const MAX_BYTES: usize = 4096;

    /// Validates `value`.
    pub fn new(value: impl AsRef<[u8]>) -> Result<Self, Invalid> {
        let value = value.as_ref();
        if value.len() > Self::MAX_BYTES {
            return Err(Invalid(format!(
                "the value has {} bytes: use at most {}, and publish where the rest is stored",
                value.len(),
                Self::MAX_BYTES
            )));
        }
        Ok(Self(Arc::from(value)))
    }

    /// A value from a store, whoever wrote it: of any length.
    #[must_use]
    pub fn from_store(value: &[u8]) -> Self {
        Self(Arc::from(value))
    }

    /// The value.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The value as text; invalid UTF-8 is shown as `\u{fffd}`.
    #[must_use]
    pub fn text(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.0)
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Value({:?})", self.text())
    }
}

/// Proves who may renew and release: 128 bits, drawn at random for one acquisition.
///
/// Anybody who knows it can release the lock, so it is a secret: `Debug` hides it and there is no `Display`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnerId(u128);

impl OwnerId {
    /// An owner from 128 bits that the caller drew at random.
    #[must_use]
    pub const fn from_bits(bits: u128) -> Self {
        Self(bits)
    }

    /// The bits, for a store.
    #[must_use]
    pub const fn bits(self) -> u128 {
        self.0
    }

    /// The printable handle, 32 hex digits, for a script that renews or releases from another process.
    #[must_use]
    pub fn reveal(self) -> String {
        format!("{:032x}", self.0)
    }
}

impl fmt::Debug for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OwnerId(hidden)")
    }
}

impl FromStr for OwnerId {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        // The message does not repeat the text: it may be a real owner with one typing mistake.
        let bad = || Invalid("the owner is not 32 hex digits: pass what `acquire` printed".into());
        if text.len() != 32 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(bad());
        }
        u128::from_str_radix(text, 16).map(Self).map_err(|_| bad())
    }
}

/// The fencing token: strictly rising per name and store, from 1 to 2^53 - 1 so that JSON keeps it whole. As an SQL `bigint`
/// it is `token.get().cast_signed()`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(NonZeroU64);

impl Token {
    /// The highest token, 2^53 - 1.
    pub const MAX: u64 = (1 << 53) - 1;

    /// Validates `value`.
    pub fn new(value: u64) -> Result<Self, Invalid> {
        match NonZeroU64::new(value) {
            Some(token) if value <= Self::MAX => Ok(Self(token)),
            _ => Err(Invalid(format!(
                "{value} is not a token: tokens are whole numbers from 1 to {}",
                Self::MAX
            ))),
        }
    }

    /// The token as a number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({})", self.0)
    }
}

impl FromStr for Token {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let value: u64 = text.parse().map_err(|_| {
            Invalid(format!(
                "\"{}\" is not a token: tokens are whole numbers from 1 to {}",
                text.escape_debug(),
                Self::MAX
            ))
        })?;
        Self::new(value)
    }
}

/// What a fence takes: the name of a lock and the token of one of its grants. One value, so that a token cannot be
/// presented under the name of another lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FencingToken {
    name: LockName,
    token: Token,
}

impl FencingToken {
    /// The token of a grant of `name`. A holder gets it from its guard; this is for a service that receives both.
    #[must_use]
    pub const fn new(name: LockName, token: Token) -> Self {
        Self { name, token }
    }

    /// The name of the lock.
    #[must_use]
    pub const fn name(&self) -> &LockName {
        &self.name
    }

    /// The number alone.
    #[must_use]
    pub const fn token(&self) -> Token {
        self.token
    }
}

/// How long the store keeps a grant without a renewal: 100 ms to 24 h, in whole milliseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ttl(u32);

impl Ttl {
    /// The shortest lease.
    pub const MIN: Self = Self(100);
    /// The longest lease.
    pub const MAX: Self = Self(24 * 60 * 60 * 1000);

    /// Validates `span` and rounds it down to whole milliseconds.
    pub fn new(span: Duration) -> Result<Self, Invalid> {
        u32::try_from(span.as_millis())
            .ok()
            .map(Self)
            .filter(|ttl| (Self::MIN..=Self::MAX).contains(ttl))
            .ok_or_else(|| Invalid(format!("the TTL {span:?} is out of range: give 100ms to 24h")))
    }

    /// The TTL as a duration.
    #[must_use]
    pub const fn as_duration(self) -> Duration {
        Duration::from_millis(self.0 as u64)
    }

    /// The TTL in milliseconds.
    #[must_use]
    pub const fn as_millis(self) -> u32 {
        self.0
    }
}

impl fmt::Debug for Ttl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ttl({:?})", self.as_duration())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_name_is_valid() {
        assert_eq!(LockName::escaped("a\nb\u{1b}\\").as_str(), r"a\nb\u{1b}\\");
        assert_eq!(LockName::escaped("grün").as_str(), "grün");
        for odd in ["", "\0", &"x".repeat(513), &"ü".repeat(300), &"\n".repeat(512)] {
            let shown = LockName::escaped(odd);
            assert_eq!(LockName::new(shown.as_str()), Ok(shown), "{odd:?}");
        }
    }

    #[test]
    fn invalid_names_are_refused_with_the_value() {
        assert_eq!(LockName::new("invoice/42").unwrap().as_str(), "invoice/42");
        assert!(LockName::new(&"ü".repeat(256)).is_ok());
        let too_long = LockName::new(&"x".repeat(513)).unwrap_err().to_string();
        assert!(too_long.contains("513") && too_long.contains("512"), "{too_long}");
        assert!(LockName::new("").unwrap_err().to_string().contains("empty"));
        let control = LockName::new("a\nb").unwrap_err().to_string();
        assert!(control.contains(r"a\nb") && control.contains("U+000A"), "{control}");
        assert!(!control.contains('\n'), "an error is one line");
    }

    #[test]
    fn owner_is_not_shown() {
        let owner = OwnerId::from_bits(0xdead_beef);
        assert!(!format!("{owner:?}").contains("dead"));
        assert_eq!(owner.reveal().parse::<OwnerId>().unwrap(), owner);
        let wrong = "deadbeef".parse::<OwnerId>().unwrap_err().to_string();
        assert!(!wrong.contains("deadbeef"), "{wrong}");
        assert!("+0000000000000000000000000000001".parse::<OwnerId>().is_err());
    }

    #[test]
    fn tokens_stay_json_safe() {
        assert!(Token::new(0).is_err());
        assert_eq!(Token::new(Token::MAX).unwrap().get(), 9_007_199_254_740_991);
        assert!(Token::new(Token::MAX + 1).is_err());
        assert!("-1".parse::<Token>().unwrap_err().to_string().contains("-1"));
    }

    #[test]
    fn values_have_a_limit_and_any_content() {
        assert_eq!(Value::new("10.0.0.7:80").unwrap().text(), "10.0.0.7:80");
        assert_eq!(Value::new([0xff]).unwrap().text(), "\u{fffd}");
        assert!(Value::new([0; 4096]).is_ok());
        assert!(Value::new([0; 4097]).unwrap_err().to_string().contains("4097"));
    }

    #[test]
    fn ttls_are_limited() {
        for bad in
            [Duration::ZERO, Duration::from_millis(99), Duration::from_secs(86_401), Duration::MAX]
        {
            assert!(Ttl::new(bad).is_err(), "{bad:?}");
        }
        assert_eq!(Ttl::new(Duration::from_millis(100)).unwrap(), Ttl::MIN);
        assert_eq!(Ttl::new(Duration::from_hours(24)).unwrap(), Ttl::MAX);
    }
}
