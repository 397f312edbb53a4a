//! HTTP/1 as text: heads, bodies, and connections of clients.
//!
//! Why a reader of our own: a fence stands or falls with both sides agreeing where a request ends. The usual
//! readers mend what they are given (a second `Content-Length` is dropped, a bare line feed ends a line), and what
//! they mended can no longer be seen. This one takes one spelling of each thing and refuses the rest.

pub(crate) mod body;
pub(crate) mod fields;
pub(crate) mod head;
pub(crate) mod serve;
mod write;
