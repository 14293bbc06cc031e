#!/usr/bin/env bash
# Compares the API of a live cluster with its OpenAPI document: a validator reads the document, and a fuzzer that knows
# nothing but the document makes at least 2,000 calls, of which none may be answered with 5xx or with what the document
# does not say.
#
#   tests/fuzz/run.sh [PALISADE]      needs python3; the rest it installs from PyPI into a directory of its own
set -euo pipefail
cd "$(dirname "$0")/../.."
palisade=$(realpath "${1:-target/debug/palisade}")
fuzz=$(realpath tests/fuzz)
cases_min=2000

skip() {
    echo "skipped: the API is not fuzzed: $*" >&2
    exit 0
}

command -v python3 >/dev/null 2>&1 || skip "there is no python3"
python3 -c 'import ssl, tomllib' 2>/dev/null || skip "python3 is older than 3.11, or has no TLS"
work=$(mktemp -d /tmp/palisade-fuzz-XXXXXX)
export PALISADE_CONTEXT_FILE=$work/contexts.toml
finish() {
    "$palisade" dev stop --dir "$work/dev" >/dev/null 2>&1 || true
    rm -rf "$work"
}
trap finish EXIT

python3 -m venv "$work/venv" >"$work/pip.log" 2>&1 || skip "python3 makes no venv: $(tail -n 1 "$work/pip.log")"
"$work/venv/bin/pip" install -q --disable-pip-version-check -r "$fuzz/requirements.txt" >"$work/pip.log" 2>&1 ||
    skip "schemathesis cannot be installed from PyPI: $(tail -n 1 "$work/pip.log")"

"$palisade" dev --detach --dir "$work/dev" >"$work/dev.log" 2>&1 || { cat "$work/dev.log" >&2; exit 1; }
"$palisade" workload apply -f examples/hello.yaml >/dev/null
python3 - "$PALISADE_CONTEXT_FILE" "$work" <<'PY'
import ssl, sys, tomllib, urllib.request
context = tomllib.load(open(sys.argv[1], "rb"))["context"][0]
addr, token = context["addrs"][-1], context["token"]
for name, text in ("ca.pem", context["ca_pem"]), ("token", token), ("addr", addr):
    open(f"{sys.argv[2]}/{name}", "w").write(text)
tls = ssl.create_default_context(cadata=context["ca_pem"])
request = urllib.request.Request(f"{addr}/openapi.json", headers={"Authorization": f"Bearer {token}"})
with urllib.request.urlopen(request, context=tls, timeout=20) as answer:
    open(f"{sys.argv[2]}/openapi.json", "wb").write(answer.read())
PY
addr=$(cat "$work/addr")
"$work/venv/bin/openapi-spec-validator" "$work/openapi.json"

# Not called: what changes the cluster under the fuzzer, or its CA, and what takes its token away.
never='^(cluster\.(addReplica|removeReplica|setAddress|drain|transferLeader|backup)|apiTokens\.revoke|pki\.(rotate|advance|abort|revoke))$'
checks=not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,response_schema_conformance
cases=0
fuzz() {
    local config=$1 except=$2 examples=$3 log=$work/$1.log
    # It leaves a directory where it runs.
    if ! (cd "$work" && "$work/venv/bin/schemathesis" --config-file "$fuzz/$config.toml" run "$work/openapi.json" \
        -u "$addr" -H "Authorization: Bearer $(cat "$work/token")" --tls-verify "$work/ca.pem" \
        --phases coverage,fuzzing -n "$examples" --seed 1 --exclude-operation-id-regex "$except" -c "$checks" \
        --request-timeout 20 --continue-on-failure --warnings off) >"$log" 2>&1; then
        cat "$log" >&2
        echo "the API and its document differ: see above" >&2
        exit 1
    fi
    local made
    made=$(sed -n 's/^ *\([0-9]\+\) generated.*/\1/p' "$log")
    echo "fuzz: $config: ${made:-0} calls, as the document says"
    cases=$((cases + ${made:-0}))
}
fuzz free "$never" 12
fuzz named "${never%)\$}|nodes\.remove|workloads\.remove)\$" 4
if [ "$cases" -lt "$cases_min" ]; then
    echo "only $cases calls were made, and there are to be $cases_min" >&2
    exit 1
fi
"$palisade" node ls >/dev/null
echo "fuzz: $cases calls, none answered with 5xx"
