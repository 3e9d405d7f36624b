#!/usr/bin/env bash
# Builds the image and runs a whole consortium in it through compose.yaml: 3 silos, 2 mixes, 1 server,
# one container each, on a network of their own.  Ends with the server's model, or fails.
#
#     make bundle && deploy/containers/try.sh dist/silomix-0.1.0 /tmp/try
#
# As root, with podman, podman-compose, buildah, debootstrap and catatonit.  No registry is needed: the base
# image is made from Debian's packages.  For people who change compose.yaml; the tests do not run it.
set -euo pipefail

bundle=$(realpath "$1")
folder=$2
here=$(realpath "$(dirname "$0")")
version=$(cat "$bundle/VERSION")
silos=(silo-1 silo-2 silo-3) mixes=(mix-1 mix-2)
export SILOMIX_IMAGE=localhost/silomix:$version

mkdir "$folder"
cd "$folder"
if ! podman image exists localhost/debian:bookworm-slim; then
    debootstrap --variant=minbase bookworm root >debootstrap.log
    tar --directory root --create . | podman import --quiet - localhost/debian:bookworm-slim
fi
buildah bud --isolation=chroot --network=host --tag "$SILOMIX_IMAGE" --file "$here/Dockerfile" \
    --build-arg BASE=localhost/debian:bookworm-slim "$bundle" >build.log 2>&1

# Each container is found by its name; published ports would collide on one machine.
compose() {
    local party=$1 role=$2
    shift 2
    {
        printf 'services:\n  %s:\n    container_name: try-%s\n    networks: {consortium: {aliases: [%s]}}\n' "$role" "$party" "$party"
        printf '    ulimits: {nproc: 16384}\n'
        [ "$role" = silo ] || printf '    ports: !override []\n'
        printf 'networks:\n  consortium: {external: true, name: silomix-try}\n'
    } >"$party.yaml"
    PARTY=$PWD/parties/$party podman-compose -p "try-$party" -f "$here/compose.yaml" -f "$party.yaml" \
        --profile "$role" "$@" >>"$party.log" 2>&1
}

clean() {
    podman rm --force --time 5 $(printf 'try-%s ' "${silos[@]}" "${mixes[@]}" server) >/dev/null 2>&1 || true
    podman network rm silomix-try >/dev/null 2>&1 || true
}
trap clean EXIT

podman network create silomix-try >/dev/null
podman run --rm --network none --user 0 --ulimit nproc=16384 --ulimit nofile=16384 \
    --volume "$PWD:/here" --workdir /here "$SILOMIX_IMAGE" consortium init parties --silos 3 --mixes 2 --rounds 40 \
    --host server=server --host mix-1=mix-1 --host mix-2=mix-2 >init.log
chown --recursive 10001:10001 parties
for silo in "${silos[@]}"; do
    compose "$silo" silo run --rm silo silo approve silo.toml study.toml --yes
    compose "$silo" silo up --detach
done
for mix in "${mixes[@]}"; do compose "$mix" mix up --detach; done
compose server server up --detach

healthy() { podman healthcheck run "try-$1" >>health.log 2>&1; }
for party in server "${mixes[@]}" "${silos[@]}"; do
    for _ in {1..60}; do ! healthy "$party" || break; sleep 1; done
    healthy "$party" || { echo "$party is not healthy" >&2; exit 1; }
done
status=$(podman wait try-server)
for party in server "${mixes[@]}" "${silos[@]}"; do podman logs "try-$party" >"$party.log" 2>&1; done
[ "$status" = 0 ] && [ -e parties/server/state/model.npz ] || { cat server.log >&2; exit 1; }
echo "ok: every container was healthy, and $folder/parties/server/state/model.npz is there"
