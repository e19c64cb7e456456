# Finds items that follow a closing brace without a blank line, which rustfmt has no stable option for.
FNR == 1 { closed = -1 }
{
    match($0, /^ */); indent = RLENGTH; text = substr($0, indent + 1)
    item = text ~ /^(pub(\([a-z ]+\))? )?(async |const |unsafe |extern "C" )*((fn|struct|enum|union|mod|trait|macro_rules!|static|type) |impl[ <])/ || text ~ /^(pub(\([a-z ]+\))? )?const [A-Z_]+:/ || text ~ /^(\/\/\/|#\[)/
    if (closed == indent && item) { printf "%s:%d: no blank line before this item\n", FILENAME, FNR; found = 1 }
    closed = (text == "}") ? indent : -1
}
END { exit found }
