//! Whether the host's packet filters, nftables and the older iptables, let the first datagram of a peer in. Nothing is
//! changed.
//!
//! Rules can be anything. A rule is judged only as far as its expressions are understood: protocol, destination port,
//! loopback interface, and connection state. The answer is [`Admission::Unclear`] as soon as it depends on others.

mod legacy;

use super::command;
use serde_json::Value;

/// The most rules that are looked at. The kernel allows no loop of chains, but chains that are reached many times.
const MAX_RULES: usize = 100_000;

/// The verdict of the rules of nftables, which include iptables-nft, and of the older iptables on a new UDP datagram
/// from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Admission {
    /// They let it in.
    Admitted,
    /// They drop it.
    Dropped {
        /// The family, table and name of the chain.
        chain: String,
    },
    /// The rules of the older iptables drop it.
    DroppedByIptables {
        /// The program that lists and changes them.
        program: &'static str,
    },
    /// The verdict depends on rules that are not understood.
    Unclear,
}

/// The verdict of the chains at the hook `input` on datagrams to this UDP port. `None` if the rules cannot be read:
/// `nft` is not installed, or this process lacks the right. A packet has to pass the rules of the older iptables too.
pub async fn admission(port: u16) -> Option<Admission> {
    let dropped =
        |admission: &Admission| matches!(admission, Admission::Dropped { .. } | Admission::DroppedByIptables { .. });
    let legacy = legacy::admission(port).await;
    let nftables = ruleset().await.map(|rules| judge(&rules, port));
    match (nftables, legacy) {
        (nftables, legacy) if dropped(&legacy) && !nftables.as_ref().is_some_and(dropped) => Some(legacy),
        (Some(Admission::Admitted), legacy) => Some(legacy),
        (nftables, _) => nftables,
    }
}

/// The rules of nftables, in the JSON of `nft`. `None` if they cannot be read.
pub(super) async fn ruleset() -> Option<Value> {
    let nft = command::find_program("nft")?;
    let text = command::output(&nft, &["-j", "list", "ruleset"]).await?;
    serde_json::from_str(&text).ok()
}

fn judge(ruleset: &Value, port: u16) -> Admission {
    let Some(items) = ruleset["nftables"].as_array() else { return Admission::Unclear };
    let base =
        |item: &&Value| item["hook"] == "input" && ["ip", "ip6", "inet"].iter().any(|name| item["family"] == *name);
    let mut unclear = false;
    for chain in items.iter().filter_map(|item| item.get("chain")).filter(base) {
        let mut walk =
            Walk { items, family: &chain["family"], table: &chain["table"], port, left: MAX_RULES, unclear: false };
        let verdict = walk.chain(&chain["name"]);
        let dropped = match verdict {
            Some(accepted) => !accepted,
            None => chain["policy"] == "drop",
        };
        // An earlier rule that was not understood may have decided otherwise.
        if dropped && !walk.unclear {
            let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            return Admission::Dropped {
                chain: format!("{} {} {}", word(&chain["family"]), word(&chain["table"]), word(&chain["name"])),
            };
        }
        unclear |= walk.unclear;
    }
    if unclear { Admission::Unclear } else { Admission::Admitted }
}

/// A walk through the rules of one base chain.
struct Walk<'a> {
    items: &'a [Value],
    family: &'a Value,
    table: &'a Value,
    port: u16,
    /// How many more rules are looked at.
    left: usize,
    /// Whether a rule that was not understood could have decided.
    unclear: bool,
}

impl Walk<'_> {
    /// Whether the chain accepts the datagram. `None` if no rule decides.
    fn chain(&mut self, name: &Value) -> Option<bool> {
        let of_chain =
            |rule: &&Value| rule["family"] == *self.family && rule["table"] == *self.table && rule["chain"] == *name;
        let rules: Vec<_> = self.items.iter().filter_map(|item| item.get("rule")).filter(of_chain).collect();
        for rule in rules {
            if self.left == 0 {
                self.unclear = true;
                return None;
            }
            self.left -= 1;
            let expressions = rule["expr"].as_array().map_or(&[][..], Vec::as_slice);
            let certain = match matches(expressions, self.port) {
                Some(false) => continue,
                Some(true) => true,
                None => false,
            };
            for expression in expressions {
                let Some((word, target)) = expression.as_object().and_then(|map| map.iter().next()) else { continue };
                let decision = match word.as_str() {
                    "accept" => Some(true),
                    "drop" | "reject" => Some(false),
                    "jump" | "goto" => {
                        let inner = self.chain(&target["target"]);
                        // Rules after a goto in this chain are not reached. The policy decides.
                        if word == "goto" && inner.is_none() && certain {
                            return None;
                        }
                        inner
                    }
                    "return" if certain => return None,
                    "return" | "vmap" | "queue" => {
                        self.unclear = true;
                        None
                    }
                    // An extension of iptables that nft cannot translate.
                    "xt" if target["type"] == "target" => {
                        self.unclear = true;
                        None
                    }
                    _ => None,
                };
                match decision {
                    Some(accepted) if certain => return Some(accepted),
                    Some(_) => self.unclear = true,
                    None => {}
                }
            }
        }
        None
    }
}

/// Whether all conditions of a rule hold for the datagram. `None` if this is not known.
fn matches(expressions: &[Value], port: u16) -> Option<bool> {
    let mut certain = true;
    for expression in expressions {
        let holds = if let Some(condition) = expression.get("match") {
            holds(condition, port)
        } else if expression.get("xt").is_some_and(|xt| xt["type"] == "match") || expression.get("limit").is_some() {
            None
        } else {
            Some(true)
        };
        match holds {
            Some(false) => return Some(false),
            Some(true) => {}
            None => certain = false,
        }
    }
    certain.then_some(true)
}

fn holds(condition: &Value, port: u16) -> Option<bool> {
    let (left, right) = (&condition["left"], &condition["right"]);
    let equal = match condition["op"].as_str() {
        Some("==" | "in") => true,
        Some("!=") => false,
        _ => return None,
    };
    let found = if let Some(payload) = left.get("payload") {
        match (payload["protocol"].as_str(), payload["field"].as_str()) {
            (Some("udp" | "th"), Some("dport")) => contains(right, &|value| number_is(value, port))?,
            // A field of another protocol is not in the datagram, so no value matches.
            (Some("tcp" | "icmp" | "icmpv6" | "sctp" | "esp" | "ah"), _) => return Some(false),
            (Some("ip" | "ip6"), Some("protocol" | "nexthdr")) => contains(right, &|value| Some(value == "udp"))?,
            _ => return None,
        }
    } else if let Some(meta) = left.get("meta") {
        match meta["key"].as_str() {
            Some("l4proto") => contains(right, &|value| Some(value == "udp"))?,
            // The datagram comes from outside.
            Some("iifname" | "iif") if right == "lo" => false,
            _ => return None,
        }
    } else if let Some(ct) = left.get("ct") {
        match ct["key"].as_str() {
            Some("state") => contains(right, &|value| Some(value == "new"))?,
            _ => return None,
        }
    } else {
        return None;
    };
    Some(found == equal)
}

/// Whether a value, a list, a set or a range contains what `is` recognizes. `None` for a named set.
fn contains(right: &Value, is: &dyn Fn(&Value) -> Option<bool>) -> Option<bool> {
    if let Some(items) = right.as_array().or_else(|| right.get("set").and_then(Value::as_array)) {
        return items.iter().map(|item| contains(item, is)).try_fold(false, |found, item| Some(found | item?));
    }
    if right.as_str().is_some_and(|name| name.starts_with('@')) {
        return None;
    }
    is(right)
}

fn number_is(value: &Value, port: u16) -> Option<bool> {
    if let Some(range) = value.get("range").and_then(Value::as_array) {
        let end = |index: usize| range.get(index)?.as_u64();
        return Some((end(0)?..=end(1)?).contains(&u64::from(port)));
    }
    Some(value.as_u64()? == u64::from(port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const PORT: u16 = 51_820;

    fn ruleset(policy: &str, rules: &[Value]) -> Value {
        let chain = |name: &str| json!({ "chain": { "family": "inet", "table": "filter", "name": name } });
        let mut input = chain("input");
        input["chain"]["hook"] = json!("input");
        input["chain"]["policy"] = json!(policy);
        let rule = |chain: &Value, expr: &Value| json!({ "rule": { "family": "inet", "table": "filter", "chain": chain, "expr": expr } });
        let rules = rules.iter().map(|item| match item.get("in") {
            Some(name) => rule(name, &item["expr"]),
            None => rule(&json!("input"), item),
        });
        let mut items = vec![input, chain("allow")];
        items.extend(rules);
        json!({ "nftables": items })
    }

    fn matching(left: Value, right: Value) -> Value {
        json!({ "match": { "op": "==", "left": left, "right": right } })
    }

    fn dport(right: Value) -> Value {
        matching(json!({ "payload": { "protocol": "udp", "field": "dport" } }), right)
    }

    fn judged(policy: &str, rules: &[Value]) -> Admission {
        judge(&ruleset(policy, rules), PORT)
    }

    #[test]
    fn the_policy_decides_where_no_rule_does() {
        let dropped = Admission::Dropped { chain: "inet filter input".to_owned() };
        assert_eq!(judged("accept", &[]), Admission::Admitted);
        assert_eq!(judged("drop", &[]), dropped);
        // The usual rules of a workstation.
        let states = json!({ "ct": { "key": "state" } });
        let usual = [
            json!([matching(states, json!(["established", "related"])), { "accept": null }]),
            json!([matching(json!({ "meta": { "key": "iifname" } }), json!("lo")), { "accept": null }]),
            json!([matching(json!({ "payload": { "protocol": "tcp", "field": "dport" } }), json!(22)), { "accept": null }]),
            json!([dport(json!(53)), { "accept": null }]),
        ];
        assert_eq!(judged("drop", &usual), dropped);
        assert_eq!(judged("accept", &usual), Admission::Admitted);
        let all = [json!([{ "counter": null }, { "reject": null }])];
        assert_eq!(judged("accept", &all), dropped);
    }

    #[test]
    fn a_rule_for_the_port_admits() {
        for right in [json!(51_820), json!({ "set": [1, 51_820] }), json!({ "range": [51_000, 52_000] })] {
            assert_eq!(judged("drop", &[json!([dport(right), { "accept": null }])]), Admission::Admitted);
        }
        let through_a_chain = [
            json!([{ "jump": { "target": "allow" } }]),
            json!({ "in": "allow", "expr": [dport(json!(51_820)), { "accept": null }] }),
        ];
        assert_eq!(judged("drop", &through_a_chain), Admission::Admitted);
    }

    #[test]
    fn what_is_not_understood_is_not_judged() {
        let source = json!({ "payload": { "protocol": "ip", "field": "saddr" } });
        for rule in [
            json!([matching(source, json!("192.0.2.1")), { "accept": null }]),
            json!([dport(json!("@ports")), { "accept": null }]),
            json!([{ "xt": { "type": "match", "name": "multiport" } }, { "accept": null }]),
            json!([{ "xt": { "type": "target", "name": "TARPIT" } }]),
            json!([{ "vmap": { "key": {}, "data": {} } }]),
        ] {
            assert_eq!(judged("drop", std::slice::from_ref(&rule)), Admission::Unclear, "{rule}");
        }
    }
}
