//! Source text for people, normalized so that what is equal for a caller is equal as text.

use quote::ToTokens;
use syn::visit_mut::{self, VisitMut};
use syn::{PatIdent, Receiver};

/// Tokens are separated by spaces. Replaced in this order.
const SPACING: &[(&str, &str)] = &[
    (" :: ", "::"),
    (" < ", "<"),
    ("< ", "<"),
    (" >", ">"),
    (" ,", ","),
    (" ;", ";"),
    (" :", ":"),
    ("& ", "&"),
    ("( ", "("),
    (" )", ")"),
    ("[ ", "["),
    (" ]", "]"),
    (" (", "("),
    ("->(", "-> ("),
    (",(", ", ("),
    ("=(", "= ("),
    (" . ", "."),
    ("? ", "?"),
    (",)", ")"),
    (",>", ">"),
];

/// Source text on one line, spaced as people write it.
pub(crate) fn shown(node: &impl ToTokens) -> String {
    let text = node.to_token_stream().to_string();
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let text = SPACING.iter().fold(text, |text, (loose, tight)| text.replace(loose, tight));
    text.trim_end_matches(',').to_owned()
}

/// Removes what a caller does not see: `mut` of an argument, and the module or crate of our types.
pub(crate) struct Normalised;

impl VisitMut for Normalised {
    fn visit_path_mut(&mut self, path: &mut syn::Path) {
        visit_mut::visit_path_mut(self, path);
        let first =
            path.segments.first().map(|segment| segment.ident.to_string()).unwrap_or_default();
        if matches!(first.as_str(), "crate" | "self" | "super") || first.starts_with("fencepost") {
            let names = segments(path);
            let skipped = names
                .iter()
                .position(|name| name.starts_with(char::is_uppercase))
                .unwrap_or(names.len() - 1);
            path.segments = std::mem::take(&mut path.segments).into_iter().skip(skipped).collect();
        }
    }

    fn visit_receiver_mut(&mut self, receiver: &mut Receiver) {
        visit_mut::visit_receiver_mut(self, receiver);
        if receiver.reference.is_none() && receiver.colon_token.is_none() {
            receiver.mutability = None;
        }
    }

    fn visit_pat_ident_mut(&mut self, pattern: &mut PatIdent) {
        pattern.mutability = None;
    }
}

pub(crate) fn segments(path: &syn::Path) -> Vec<String> {
    path.segments.iter().map(|segment| segment.ident.to_string()).collect()
}
