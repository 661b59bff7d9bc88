#!/usr/bin/env bash
# Installs what a checkout needs, in parts: `.ci/setup.sh demo|dev|bench`. Called by the Makefile.
#
# Every command that changes the system is printed before it runs. Packages are installed into .venv or by Debian's
# package manager; pip and uv cache downloads in the user's cache folder. If the inputs of a part did not change since
# its last installation, the script does nothing. If the script may not install packages (not Debian, or not root), it
# lists all missing packages, changes nothing and exits with 1.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

part="${1:?usage: .ci/setup.sh demo|dev|bench}"
venv=.venv
python_minimum=3.11
# Missing software that the script may not install on this machine.
refused=()
# Spark alone is hundreds of megabytes in size, so uv's progress is shown on a terminal; a log contains only the
# commands.
quiet=(--quiet)
if [[ -t 2 ]]; then quiet=(); fi

run() {
    printf '+ %s\n' "$*"
    "$@"
}

# missing WHAT...: prints a line for each missing item, and exits.
missing() {
    printf 'Missing: %s\n' "$@" >&2
    printf 'Install it, then run the same command again.\n' >&2
    exit 1
}

may_install() {
    [[ -e /etc/debian_version && "$(id -u)" == 0 ]]
}

# install_debian WHAT PACKAGE...: installs with apt if possible, otherwise records WHAT as missing.
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

# Installs a Python that can create a virtual environment; Debian ships the module venv without its dependencies.
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

# Prints the hash of the inputs of the part: its constraints, the metadata of the project and this script.
fingerprint() {
    cat constraints/setup.txt "constraints/$part.txt" pyproject.toml .ci/setup.sh \
        kafka-records/pyproject.toml kafka-records/setup.py kafka-records/src/*.pyx | sha256sum | cut -d' ' -f1
}

install_python_part() {
    [[ ${#refused[@]} == 0 ]] || missing "${refused[@]}"
    local stamp="$venv/.setup-$part"
    if [[ -x $venv/bin/python && -f $stamp && "$(<"$stamp")" == "$(fingerprint)" ]]; then return; fi
    make_venv
    run $venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r constraints/setup.txt
    # One package is built from source, with the build backends that the line above installed with hashes.
    local install=("$venv/bin/uv" pip install "${quiet[@]}" --python "$venv/bin/python" --no-build-isolation)
    run "${install[@]}" --require-hashes -r "constraints/$part.txt"
    run "${install[@]}" --no-deps -e .
    if [[ $part != demo ]]; then run "${install[@]}" --no-deps ./kafka-records; fi
    fingerprint >"$stamp"
}

# The native module of the Kafka listener is compiled from C, with the headers of the environment's Python.
install_compiler() {
    local python include
    python="$(find_python)"
    if has_venv; then python=$venv/bin/python; fi
    include="$([[ -z $python ]] || "$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')"
    local absent=()
    command -v cc >/dev/null || absent+=(gcc libc6-dev)
    [[ -f $include/Python.h ]] || absent+=(python3-dev)
    if [[ ${#absent[@]} == 0 ]]; then return; fi
    install_debian "a C compiler and the headers of Python" "${absent[@]}"
}

# PostgreSQL is needed for the recipes. The tests start their own server, so Debian must not create a server.
install_postgresql() {
    if compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || command -v initdb >/dev/null; then return; fi
    if may_install; then
        install_debian "PostgreSQL" postgresql-common
        mkdir -p /etc/postgresql-common/createcluster.d
        printf 'create_main_cluster = false\n' >/etc/postgresql-common/createcluster.d/fairlead.conf
    fi
    install_debian "PostgreSQL" postgresql
}

# Tools with which the test Kubernetes and the images are built; all other programs are built from Go modules.
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
ipset ipset
buildah buildah
mmdebstrap mmdebstrap
newuidmap uidmap
haproxy haproxy
EOF
    if [[ ${#absent[@]} == 0 ]]; then return; fi
    install_debian "what the tests on Kubernetes run with: ${absent[*]}" "${absent[@]}"
}

# Spark needs a Java runtime.
install_java() {
    if command -v java >/dev/null; then return; fi
    install_debian "Java 17 or newer" default-jre-headless
}

# Terminal emulator that tests can read, and the shells whose completion is tested.
install_shells() {
    local command absent=()
    for command in tmux zsh fish; do
        command -v "$command" >/dev/null || absent+=("$command")
    done
    if [[ ${#absent[@]} == 0 ]]; then return; fi
    install_debian "what the tests of the command line type in: ${absent[*]}" "${absent[@]}"
}

# The browser in which tests open the console.
install_chromium() {
    if command -v chromium >/dev/null; then return; fi
    install_debian "Chromium" chromium
}

# Prometheus and promtool for tests; Debian's unit would start a Prometheus for the whole machine.
install_prometheus() {
    if command -v prometheus >/dev/null && command -v promtool >/dev/null; then return; fi
    install_debian "Prometheus" prometheus
    if may_install && [[ -d /run/systemd/system ]]; then run systemctl disable --now prometheus; fi
}

# The oldest supported PySpark is installed in a separate environment inside the environment of the checkout.
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
    install_chromium
    install_kubernetes_tools
    install_python
    install_compiler
    install_python_part
    install_oldest_spark
    ;;
bench)
    check_bench
    install_python
    install_compiler
    install_python_part
    install_oldest_spark
    ;;
*) missing "a part called $part (there are demo, dev and bench)" ;;
esac
