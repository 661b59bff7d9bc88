#!/usr/bin/env bash
# Installs what a checkout needs, in parts: `.ci/setup.sh demo|dev|bench`. Called by the Makefile.
#
# Every command that changes something is printed before it runs. Everything lands in .venv (or in Debian's own
# package database); downloads are cached by pip and uv in the user's cache folder. A part whose inputs did not
# change since the last time is a no-op. Where this script may not install (not Debian, or not root) it lists
# all that is missing, changes nothing and ends with 1.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

part="${1:?usage: .ci/setup.sh demo|dev|bench}"
venv=.venv
python_minimum=3.11
# What is missing and may not be installed here.
refused=()
# Spark alone is hundreds of megabytes: a terminal shows uv's progress, a log only the commands.
quiet=(--quiet)
if [[ -t 2 ]]; then quiet=(); fi

run() {
    printf '+ %s\n' "$*"
    "$@"
}

# missing WHAT...: a line for each, and the end.
missing() {
    printf 'Missing: %s\n' "$@" >&2
    printf 'Install it, then run the same command again.\n' >&2
    exit 1
}

may_install() {
    [[ -e /etc/debian_version && "$(id -u)" == 0 ]]
}

# install_debian WHAT PACKAGE...: by apt where that is possible, otherwise notes what is missing.
install_debian() {
    local what="$1"
    shift
    if ! may_install; then
        refused+=("$what (on Debian: apt-get install $*)")
        return
    fi
    run apt-get update -qq
    run env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"
}

new_enough() {
    "$1" -c "import sys; sys.exit(sys.version_info < tuple(map(int, '$python_minimum'.split('.'))))" 2>/dev/null
}

find_python() {
    local candidate
    for candidate in "${PYTHON:-python3}" python3.13 python3.12 python3.11; do
        if command -v "$candidate" >/dev/null && new_enough "$candidate"; then
            command -v "$candidate"
            return
        fi
    done
}

has_venv() {
    [[ -x $venv/bin/python ]] && new_enough $venv/bin/python
}

# A Python that can make an environment: Debian ships the module without what it needs for that.
install_python() {
    if has_venv; then return; fi
    local python
    python="$(find_python)"
    if [[ -z $python ]]; then
        install_debian "Python $python_minimum or newer" python3 python3-venv
    elif ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        install_debian "the Python module venv" python3-venv
    fi
}

make_venv() {
    if has_venv; then return; fi
    local python
    python="$(find_python)"
    [[ -n $python ]] || missing "Python $python_minimum or newer (this system's is older)"
    run "$python" -m venv $venv
}

# What the part was made from: its constraints, the project's own metadata and this script.
fingerprint() {
    cat constraints/setup.txt "constraints/$part.txt" pyproject.toml .ci/setup.sh | sha256sum | cut -d' ' -f1
}

install_python_part() {
    [[ ${#refused[@]} == 0 ]] || missing "${refused[@]}"
    local stamp="$venv/.setup-$part"
    if [[ -x $venv/bin/python && -f $stamp && "$(<"$stamp")" == "$(fingerprint)" ]]; then return; fi
    make_venv
    run $venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r constraints/setup.txt
    # Builds (one package comes as source only) use the backends that the line above installed by hash.
    local install=("$venv/bin/uv" pip install "${quiet[@]}" --python "$venv/bin/python" --no-build-isolation)
    run "${install[@]}" --require-hashes -r "constraints/$part.txt"
    run "${install[@]}" --no-deps -e .
    fingerprint >"$stamp"
}

# PostgreSQL, for the recipes: the tests start a server of their own, so Debian is kept from making one.
install_postgresql() {
    if compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || command -v initdb >/dev/null; then return; fi
    if may_install; then
        install_debian "PostgreSQL" postgresql-common
        mkdir -p /etc/postgresql-common/createcluster.d
        printf 'create_main_cluster = false\n' >/etc/postgresql-common/createcluster.d/fairlead.conf
    fi
    install_debian "PostgreSQL" postgresql
}

# What a test Kubernetes and the images are made with; the rest of it is built from Go modules.
install_kubernetes_tools() {
    local command package absent=()
    while read -r command package; do
        command -v "$command" >/dev/null || absent+=("$package")
    done <<'EOF'
unshare util-linux
ip iproute2
runc runc
nft nftables
conntrack conntrack
iptables iptables
buildah buildah
mmdebstrap mmdebstrap
newuidmap uidmap
EOF
    if [[ ${#absent[@]} == 0 ]]; then return; fi
    install_debian "what the tests on Kubernetes run with: ${absent[*]}" "${absent[@]}"
}

# Spark runs on a JVM.
install_java() {
    if command -v java >/dev/null; then return; fi
    install_debian "Java 17 or newer" default-jre-headless
}

# A terminal that tests can read, and the shells that complete in it.
install_shells() {
    local command absent=()
    for command in tmux zsh fish; do
        command -v "$command" >/dev/null || absent+=("$command")
    done
    if [[ ${#absent[@]} == 0 ]]; then return; fi
    install_debian "what the tests of the command line type in: ${absent[*]}" "${absent[@]}"
}

# A real Prometheus and its promtool, for what asks them; Debian's unit would start one for the whole machine.
install_prometheus() {
    if command -v prometheus >/dev/null && command -v promtool >/dev/null; then return; fi
    install_debian "Prometheus" prometheus
    if may_install && [[ -d /run/systemd/system ]]; then run systemctl disable --now prometheus; fi
}

# The oldest PySpark that is supported lives in an environment of its own, inside that of the checkout.
install_oldest_spark() {
    local folder="$venv/spark-oldest" stamp="$venv/.setup-spark-oldest"
    part=spark-oldest
    if [[ -x $folder/bin/python && -f $stamp && "$(<"$stamp")" == "$(fingerprint)" ]]; then return; fi
    run "$venv/bin/uv" venv --quiet --clear --python "$venv/bin/python" "$folder"
    local install=("$venv/bin/uv" pip install "${quiet[@]}" --python "$folder/bin/python" --no-build-isolation)
    run "${install[@]}" --require-hashes -r constraints/setup.txt
    run "${install[@]}" --require-hashes -r constraints/spark-oldest.txt
    run "${install[@]}" --no-deps -e .
    fingerprint >"$stamp"
}

check_bench() {
    local absent=()
    command -v java >/dev/null || absent+=("java (on Debian: apt-get install openjdk-17-jre-headless)")
    command -v mvn >/dev/null || absent+=("mvn (on Debian: apt-get install maven)")
    [[ ${#absent[@]} == 0 ]] || missing "${absent[@]}"
}

case "$part" in
demo)
    install_java
    install_python
    install_python_part
    ;;
dev)
    install_java
    install_postgresql
    install_prometheus
    install_shells
    install_kubernetes_tools
    install_python
    install_python_part
    install_oldest_spark
    ;;
bench)
    check_bench
    install_python
    install_python_part
    install_oldest_spark
    ;;
*) missing "a part called $part (there are demo, dev and bench)" ;;
esac
