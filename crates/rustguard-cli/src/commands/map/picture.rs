//! The map as a picture. The columns are, from left to right: the clients of this node, this node, its neighbours, and
//! the nodes further away by their distance. In a network, the machines that are reached directly stand in place of the
//! neighbours.

use super::{EdgeKind, Graph, Kind, Node};
use crate::output::svg::Svg;

// Lengths in pixels.
const BOX: f64 = 236.0;
const GAP: f64 = 84.0;
const BETWEEN: f64 = 18.0;
const MARGIN: f64 = 28.0;
const HEAD: f64 = 58.0;
const FOOT: f64 = 44.0;
const LINE: f64 = 16.0;
/// The most prefixes that a box shows. The hint of the box has all of them.
const SHOWN: usize = 5;
/// The most columns beyond the neighbours. The last one takes all nodes that are still further away.
const DEPTH: usize = 4;
/// The number of characters that fit into a box.
const WIDE: usize = 28;

/// Returns the whole file.
pub(super) fn draw(graph: &Graph) -> String {
    let columns = columns(graph);
    let near = columns.iter().filter(|column| !is_further(graph, column)).map(|column| height_of(graph, column));
    let far: Vec<usize> = rows(graph);
    let tallest = near.chain([height_of(graph, &far)]).fold(0.0, f64::max);
    let middle = HEAD + tallest / 2.0;
    let top_of = |column: &[usize]| middle - height_of(graph, column) / 2.0;
    let mut places = vec![(0.0, 0.0); graph.nodes.len()];
    for (index, column) in columns.iter().enumerate() {
        let mut y = top_of(column);
        for &node in column {
            places[node] = (MARGIN + index as f64 * (BOX + GAP), y);
            y += height(&graph.nodes[node]) + BETWEEN;
        }
    }
    // Each node beyond the neighbours has its own row, so that the line to it does not cross another box.
    let mut y = top_of(&far);
    for node in far {
        places[node].1 = y;
        y += height(&graph.nodes[node]) + BETWEEN;
    }
    let mut svg = Svg::default();
    svg.text((MARGIN, 34.0), "title", &graph.title);
    for edge in &graph.edges {
        let (from, to) = (places[edge.from], places[edge.to]);
        let (left, right) = if from.0 < to.0 { (edge.from, edge.to) } else { (edge.to, edge.from) };
        let side = |node: usize, x: f64| (places[node].0 + x, places[node].1 + height(&graph.nodes[node]) / 2.0);
        let (start, end) = (side(left, BOX), side(right, 0.0));
        let bend = start.0 + GAP;
        svg.curve(start, (bend, end.1), class(edge.kind));
        if end.0 > bend {
            svg.line((bend, end.1), end, class(edge.kind));
        }
    }
    for (node, &place) in graph.nodes.iter().zip(&places) {
        draw_node(&mut svg, node, place);
    }
    let width = MARGIN * 2.0 + columns.len() as f64 * (BOX + GAP) - GAP;
    let height = HEAD + tallest + FOOT;
    legend(&mut svg, graph, height - 16.0);
    svg.finish((width.max(720.0), height), &graph.title)
}

fn class(kind: EdgeKind) -> &'static str {
    match kind {
        EdgeKind::Link => "good",
        EdgeKind::Broken => "bad dots",
        EdgeKind::Sealed => "good dash",
        EdgeKind::Via => "line dash",
        EdgeKind::Backup => "line dots",
    }
}

/// The nodes of each column.
fn columns(graph: &Graph) -> Vec<Vec<usize>> {
    let mut links: Vec<u16> = graph.nodes.iter().filter_map(further).collect();
    links.sort_unstable();
    links.dedup();
    let column_of = |node: &Node| match node.kind {
        Kind::Client => 0,
        Kind::Here => 1,
        Kind::Neighbour { .. } | Kind::Server { direct: true, .. } | Kind::Member { direct: true, .. } => 2,
        Kind::Server { .. } | Kind::Member { .. } | Kind::ClientOfServer => 3,
        Kind::Further { links: l } => 3 + links.iter().position(|&links| links == l).unwrap_or(0).min(DEPTH - 1),
    };
    let mut columns = vec![Vec::new(); 3 + links.len().min(DEPTH)];
    for (index, node) in graph.nodes.iter().enumerate() {
        columns[column_of(node)].push(index);
    }
    columns.retain(|column| !column.is_empty());
    columns
}

/// The nodes beyond the neighbours, grouped by their neighbour, so that lines seldom cross.
fn rows(graph: &Graph) -> Vec<usize> {
    let mut rows: Vec<usize> = (0..graph.nodes.len()).filter(|&node| further(&graph.nodes[node]).is_some()).collect();
    // The first edge to a node comes from its first next hop.
    rows.sort_by_key(|&node| (graph.edges.iter().find(|edge| edge.to == node).map(|edge| edge.from), node));
    rows
}

fn is_further(graph: &Graph, column: &[usize]) -> bool {
    column.iter().any(|&node| further(&graph.nodes[node]).is_some())
}

fn further(node: &Node) -> Option<u16> {
    match node.kind {
        Kind::Further { links } => Some(links),
        Kind::Server { direct: false, .. } | Kind::Member { direct: false, .. } | Kind::ClientOfServer => Some(1),
        _ => None,
    }
}

fn height_of(graph: &Graph, column: &[usize]) -> f64 {
    column.iter().map(|&node| height(&graph.nodes[node]) + BETWEEN).sum::<f64>()
        - BETWEEN.min(column.len() as f64 * BETWEEN)
}

fn height(node: &Node) -> f64 {
    let more = usize::from(node.prefixes.len() > SHOWN);
    52.0 + (node.prefixes.len().min(SHOWN) + more) as f64 * LINE
}

fn draw_node(svg: &mut Svg, node: &Node, (x, y): (f64, f64)) {
    let class = if node.kind == Kind::Here { "here" } else { "box" };
    let hint = [node.name.as_str(), &node.detail].into_iter().chain(node.prefixes.iter().map(String::as_str));
    svg.rect((x, y), (BOX, height(node)), class, &hint.collect::<Vec<_>>().join("\n"));
    let detail = if node.kind.is_lost() { "small text-bad" } else { "small muted" };
    svg.text((x + 12.0, y + 22.0), "strong", &shortened(&node.name, WIDE));
    svg.text((x + 12.0, y + 39.0), detail, &shortened(&node.detail, WIDE + 6));
    let mut y = y + 57.0;
    for prefix in node.prefixes.iter().take(SHOWN) {
        svg.text((x + 12.0, y), "code", &shortened(prefix, WIDE + 3));
        y += LINE;
    }
    if let Some(more @ 1..) = node.prefixes.len().checked_sub(SHOWN) {
        svg.text((x + 12.0, y), "small muted", &format!("and {more} more"));
    }
}

/// Draws the legend of the lines that the map contains.
fn legend(svg: &mut Svg, graph: &Graph, y: f64) {
    let mut x = MARGIN;
    for (kind, words) in [
        (EdgeKind::Link, "a tunnel"),
        (EdgeKind::Broken, "a tunnel that cannot be used"),
        (EdgeKind::Sealed, "sealed, through a server"),
        (EdgeKind::Via, "next hop; the nodes in between are not known"),
        (EdgeKind::Backup, "backup next hop"),
    ] {
        if graph.edges.iter().any(|edge| edge.kind == kind) {
            svg.line((x, y - 4.0), (x + 28.0, y - 4.0), class(kind));
            svg.text((x + 36.0, y), "small muted", words);
            x += 60.0 + words.len() as f64 * 6.0;
        }
    }
}

/// Shortens a text that does not fit.
fn shortened(text: &str, wide: usize) -> String {
    if text.chars().count() <= wide {
        return text.to_owned();
    }
    text.chars().take(wide.saturating_sub(1)).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mesh::tests::mesh;

    #[test]
    fn columns_follow_distance() {
        let graph = Graph::of(&mesh(), "here");
        assert_eq!(columns(&graph), [vec![1], vec![0], vec![2, 3, 4], vec![5], vec![6]]);
        assert_eq!(rows(&graph), [5, 6]);
    }

    #[test]
    fn boxes_do_not_overlap_and_stay_inside() {
        let mut mesh = mesh();
        for n in 6..60_u8 {
            let via = if n % 2 == 0 { "b" } else { "c<&>\"" };
            for m in 0..n % 9 {
                let prefix = format!("10.{n}.{m}.0/24");
                let metric = 192 + u16::from(n % 11) * 96;
                mesh.view.routes.push(crate::mesh::tests::route(&prefix, n, Some(metric), &[via], &[(via, 96)]));
            }
        }
        let text = draw(&Graph::of(&mesh, "here"));
        let number = |line: &str, name: &str| -> f64 {
            let from = line.find(&format!(" {name}=\"")).unwrap() + name.len() + 3;
            line[from..].split('"').next().unwrap().parse().unwrap()
        };
        let head = text.lines().next().unwrap();
        let rects: Vec<[f64; 4]> = text
            .lines()
            .filter(|line| line.contains("rx=\"6\""))
            .map(|line| ["x", "y", "width", "height"].map(|name| number(line, name)))
            .collect();
        assert!(rects.len() > 50, "{}", rects.len());
        // The straight part of a line does not cross any box.
        let lines = text.lines().filter(|line| line.starts_with("<line"));
        let lines: Vec<_> = lines.map(|line| ["x1", "x2", "y1"].map(|name| number(line, name))).collect();
        assert!(lines.len() > 30, "{}", lines.len());
        for [x1, x2, y] in lines {
            let crosses =
                |[x, top, width, height]: &&[f64; 4]| x1 < x + width && *x < x2 && *top < y && y < top + height;
            assert_eq!(rects.iter().find(crosses), None, "{x1} {x2} {y}");
        }
        for (i, [x, y, width, height]) in rects.iter().enumerate() {
            assert!(
                *x >= 0.0 && *y >= 0.0 && x + width <= number(head, "width") && y + height <= number(head, "height")
            );
            for [x2, y2, width2, height2] in &rects[..i] {
                let apart = x + width <= *x2 || x2 + width2 <= *x || y + height <= *y2 || y2 + height2 <= *y;
                assert!(apart, "{x} {y} overlaps {x2} {y2}");
            }
        }
    }

    #[test]
    fn long_lists_and_names_are_cut_and_kept_in_the_hint() {
        let mut mesh = mesh();
        for n in 0..9 {
            mesh.view.routes.push(crate::mesh::tests::route(&format!("10.9.{n}.0/24"), 1, Some(0), &[], &[]));
        }
        let text = draw(&Graph::of(&mesh, &"long".repeat(20)));
        assert!(text.contains("and 5 more") && text.contains("10.9.8.0/24"), "{text}");
        assert!(text.contains(">longlonglonglonglonglonglon…</text>"));
        let node = |count| Node {
            kind: Kind::Here,
            name: String::new(),
            detail: String::new(),
            prefixes: vec![String::new(); count],
        };
        assert_eq!(height(&node(SHOWN + 1)), height(&node(SHOWN)) + LINE, "the line that counts the others");
        assert_eq!(height(&node(SHOWN + 9)), height(&node(SHOWN + 1)));
        assert_eq!((shortened("abc", 3), shortened("abcd", 3)), ("abc".into(), "ab…".into()));
    }

    #[test]
    fn names_are_escaped() {
        let text = draw(&Graph::of(&mesh(), "here"));
        assert!(text.contains(">c&lt;&amp;&gt;&quot;</text>") && !text.contains("c<&"), "{text}");
    }
}
