#!/bin/sh
# Installs this bundle without root and without network into a folder of its own.
#
#     ./install.sh [--key PUBLIC-KEY.pem] [FOLDER]       (else ~/.local/share/silomix)
#     PYTHON=/path/to/python ./install.sh          (else that of the version in the file PYTHON)
#
# Before anything is installed: every file has the hash in SHA256SUMS and no other file is there; with --key,
# SHA256SUMS.sig is that key's signature of the list.  Whoever can change this bundle can change this script
# too, so check the signature with openssl first (docs/operations.md); here it is checked once more.
#
# FOLDER/releases/VERSION is the release, FOLDER/current points to it, FOLDER/bin/silomix runs it.
# An installation that fails leaves the release before it in place.  Nobody's keys or ledgers are
# touched: they lie in each party's own folder.
set -eu

fail() {
    echo "install.sh: $*" >&2
    exit 1
}

key=
if [ "${1:-}" = --key ]; then
    [ -r "${2:-}" ] || fail "--key names the file of a public key that can be read"
    key=$(realpath "$2")
    shift 2
fi
[ "$#" -le 1 ] || fail "give at most one folder"
target=$(realpath -m "${1:-$HOME/.local/share/silomix}")
cd "$(dirname "$0")"
version=$(cat VERSION)
wanted=$(cat PYTHON)
python=${PYTHON:-python$wanted}

if [ -n "$key" ]; then
    command -v openssl >/dev/null || fail "there is no openssl here to check the signature with"
    [ -e SHA256SUMS.sig ] || fail "the bundle has no signature: SHA256SUMS.sig is missing"
    openssl pkeyutl -verify -rawin -pubin -inkey "$key" -sigfile SHA256SUMS.sig -in SHA256SUMS ||
        fail "SHA256SUMS was not signed with $key"
fi
sha256sum --check --strict --quiet SHA256SUMS ||
    fail "files are not those of the bundle: copy it again, and compare its SHA-256 with the published one"
listed=$(cut -c 67- SHA256SUMS | LC_ALL=C sort)
present=$(find . ! -type d ! -path ./SHA256SUMS ! -path ./SHA256SUMS.sig | cut -c 3- | LC_ALL=C sort)
[ "$present" = "$listed" ] || fail "there are files that are not in SHA256SUMS: unpack the bundle again, into an empty folder"
"$python" -I -c 'import sys, venv, ensurepip; sys.exit(sys.argv[1] != "%d.%d" % sys.version_info[:2])' \
    "$wanted" 2>/dev/null ||
    fail "$python is not Python $wanted with venv; name one: PYTHON=/path/to/python$wanted ./install.sh"

if [ -e "$target/current/VERSION" ]; then
    installed=$(cat "$target/current/VERSION")
    newest=$(printf '%s\n%s\n' "$installed" "$version" | sort -V | tail -n 1)
    if [ "$installed" != "$version" ] && [ "$newest" = "$installed" ]; then
        fail "$installed is installed and newer than $version: ledgers and databases that it wrote cannot be read by an older release"
    fi
fi

umask 022
mkdir -p "$target/releases" "$target/bin"
release=$target/releases/$version
if [ ! -e "$release/VERSION" ]; then
    rm -rf "$release" # of an installation that did not end
    "$python" -I -m venv "$release"
    "$release/bin/python" -I -m pip install --quiet --disable-pip-version-check --no-cache-dir \
        --isolated --no-index --find-links wheelhouse --require-hashes --no-deps -r requirements.txt
    "$release/bin/python" -I -m pip check --disable-pip-version-check >/dev/null ||
        fail "the bundle is not complete: $("$release/bin/python" -I -m pip check 2>&1 | head -n 1)"
    cp sbom.cdx.json "$release/sbom.cdx.json"
    cp VERSION "$release/VERSION"
fi
ln -sfn "releases/$version" "$target/current.new"
mv -T "$target/current.new" "$target/current"
ln -sfn ../current/bin/silomix "$target/bin/silomix"
echo "installed silomix $version: $target/bin/silomix"
