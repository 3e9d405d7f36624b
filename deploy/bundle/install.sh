#!/bin/sh
# Installs this bundle without root and without network into a folder of its own.
#
#     ./install.sh [FOLDER]       (else ~/.local/share/silomix)
#     PYTHON=/path/to/python3.11 ./install.sh
#
# FOLDER/releases/VERSION is the release, FOLDER/current points to it, FOLDER/bin/silomix runs it.
# An installation that fails leaves the release before it in place.  Nobody's keys or ledgers are
# touched: they lie in each party's own folder.
set -eu

fail() {
    echo "install.sh: $*" >&2
    exit 1
}

[ "$#" -le 1 ] || fail "give at most one folder"
target=${1:-$HOME/.local/share/silomix}
python=${PYTHON:-python3.11}
cd "$(dirname "$0")"
version=$(cat VERSION)

sha256sum --check --strict --quiet SHA256SUMS ||
    fail "files are not those of the bundle: copy it again, and compare its SHA-256 with the published one"
"$python" -I -c 'import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null ||
    fail "$python is not Python 3.11 with venv; name one: PYTHON=/path/to/python3.11 ./install.sh"

if [ -e "$target/current/VERSION" ]; then
    installed=$(cat "$target/current/VERSION")
    newest=$(printf '%s\n%s\n' "$installed" "$version" | sort -V | tail -n 1)
    if [ "$installed" != "$version" ] && [ "$newest" = "$installed" ]; then
        fail "$installed is installed and newer than $version: ledgers and databases that it wrote cannot be read by an older release"
    fi
fi

umask 022
mkdir -p "$target/releases" "$target/bin"
target=$(cd "$target" && pwd)
release=$target/releases/$version
if [ ! -e "$release/VERSION" ]; then
    rm -rf "$release" # of an installation that did not end
    "$python" -I -m venv "$release"
    "$release/bin/python" -I -m pip install --quiet --disable-pip-version-check --no-cache-dir \
        --isolated --no-index --find-links wheelhouse --require-hashes --no-deps -r requirements.txt
    "$release/bin/python" -I -m pip check --disable-pip-version-check >/dev/null ||
        fail "the bundle is not complete: $("$release/bin/python" -I -m pip check 2>&1 | head -n 1)"
    cp VERSION "$release/VERSION"
fi
ln -sfn "releases/$version" "$target/current.new"
mv -T "$target/current.new" "$target/current"
ln -sfn ../current/bin/silomix "$target/bin/silomix"
echo "installed silomix $version: $target/bin/silomix"
