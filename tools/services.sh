#!/bin/sh
# Installs what the cluster tests run against: etcd and PostgreSQL (the programs; tests start their own instances).
# Never fails: where something stays absent, it says loudly which tests will be skipped.

have_postgres() { command -v postgres >/dev/null 2>&1 || ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1; }
have_etcd() { command -v etcd >/dev/null 2>&1; }
have_etcdctl() { command -v etcdctl >/dev/null 2>&1; }

absent() {
  have_etcd || echo etcd-server
  have_etcdctl || echo etcd-client
  have_postgres || echo postgresql
}

wanted=$(absent)
if [ -n "$wanted" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
  echo "services: installing" $wanted
  export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
  # The word splitting of $wanted is meant.
  { apt-get update -qq && apt-get install -y -qq --no-install-recommends $wanted; } >/dev/null 2>&1 || true
  wanted=$(absent)
fi

shout() { printf '\n!!!! %s\n!!!! %s\n\n' "$1" "$2" >&2; }
have_etcd && have_etcdctl || shout "etcd is not here (Debian: etcd-server, etcd-client)." \
  "SKIPPED: every test that needs etcd (registry, membership, election, clusters end to end)."
have_postgres || shout "PostgreSQL is not here (Debian: postgresql)." \
  "SKIPPED: every test that needs PostgreSQL (the cluster's journal, clusters end to end)."
[ -n "$wanted" ] || echo "services: etcd and PostgreSQL are here"
exit 0
