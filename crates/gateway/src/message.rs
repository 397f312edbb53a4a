//! HTTP/1 as text: heads and bodies.
//!
//! Why our own parser: a fence relies on both sides agreeing where a request ends. The usual parsers repair their input
//! (drop a second `Content-Length`, accept a bare line feed), and the caller cannot see that they did. This one
//! accepts one spelling of each thing and refuses the rest.

pub(crate) mod body;
pub(crate) mod fields;
pub(crate) mod head;
