//! The map for Graphviz (<https://graphviz.org/doc/info/lang.html>).

use super::{EdgeKind, Graph, Kind};
use std::fmt::Write as _;

/// Returns the whole file.
pub(super) fn write(graph: &Graph) -> String {
    let mut text = format!(
        "graph mesh {{\n  label={};\n  rankdir=LR;\n  node [shape=box, style=rounded, fontname=\"sans-serif\"];\n  \
         edge [fontname=\"sans-serif\", fontsize=10];\n",
        quoted(&graph.title)
    );
    for (index, node) in graph.nodes.iter().enumerate() {
        let lines: Vec<_> = [&node.name, &node.detail].into_iter().chain(&node.prefixes).map(String::as_str).collect();
        let style = match node.kind {
            Kind::Here => ", penwidth=2",
            Kind::Client | Kind::ClientOfServer => ", style=\"rounded,dashed\"",
            kind if kind.is_lost() => ", color=red",
            _ => "",
        };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  n{index} [label={}{style}];", quoted(&lines.join("\n")));
    }
    for edge in &graph.edges {
        let style = match edge.kind {
            EdgeKind::Link => "",
            EdgeKind::Broken => ", color=red, style=dotted",
            EdgeKind::Via | EdgeKind::Sealed => ", style=dashed",
            EdgeKind::Backup => ", style=dotted",
        };
        let _ = writeln!(text, "  n{} -- n{} [label={}{style}];", edge.from, edge.to, quoted(&edge.label));
    }
    text + "}\n"
}

/// A quoted string of the DOT language. A backslash begins an escape in labels, so it is doubled.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            c if c.is_control() => quoted.push('?'),
            c => quoted.push(c),
        }
    }
    quoted + "\""
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mesh::tests::mesh;

    #[test]
    fn the_file() {
        assert_eq!(
            write(&Graph::of(&mesh(), "here")),
            r#"graph mesh {
  label="The mesh of wg0, as here knows it";
  rankdir=LR;
  node [shape=box, style=rounded, fontname="sans-serif"];
  edge [fontname="sans-serif", fontsize=10];
  n0 [label="here\nthis node, 0101010101010101\n10.0.0.1/32", penwidth=2];
  n1 [label="phone\nclient\n10.0.0.9/32", style="rounded,dashed"];
  n2 [label="b\ncost 96, 12.3 ms\n10.0.0.2/32"];
  n3 [label="c<&>\"\ncost 310, 12.3 ms\n10.0.0.3/32"];
  n4 [label="x\nsilent", color=red];
  n5 [label="0404040404040404\nmetric 192 via b\n10.0.0.4/32\n10.4.0.0/16\nfd00::4/128"];
  n6 [label="0505050505050505\nmetric 288 via b\n10.4.4.0/24"];
  n0 -- n1 [label=""];
  n0 -- n2 [label="cost 96, 12.3 ms"];
  n0 -- n3 [label="cost 310, 12.3 ms"];
  n0 -- n4 [label="silent", color=red, style=dotted];
  n2 -- n5 [label="metric 192", style=dashed];
  n3 -- n5 [label="", style=dotted];
  n2 -- n6 [label="metric 288", style=dashed];
}
"#
        );
    }

    #[test]
    fn names_stay_inside_their_quotes() {
        assert_eq!(quoted("a\"]; evil \\N\u{1b}\n"), r#""a\"]; evil \\N?\n""#);
    }
}
