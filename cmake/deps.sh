#!/bin/sh
# Installs the Debian packages of cmake/packages.txt that are missing, and says so.
# usage: deps.sh GROUP...   (groups: build, check)
# Does nothing, not even `apt-get update`, when all are there.
set -eu
list=$(dirname "$0")/packages.txt

missing=
for group in "$@"; do
  for package in $(awk -v g="$group" '!/^#/ && $2 == g {print $1}' "$list"); do
    if ! command -v dpkg-query >/dev/null; then
      missing="$missing $package"
      continue
    fi
    status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
    [ "$status" = installed ] || missing="$missing $package"
  done
done
[ -n "$missing" ] || exit 0

if ! command -v apt-get >/dev/null; then
  echo "deps: no apt-get here; the build needs what Debian calls:$missing" >&2
  exit 0  # CMake names the first one that is really absent.
fi
sudo=
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "deps: neither root nor sudo; as root run: apt-get install$missing" >&2
    exit 1
  fi
  sudo=sudo
fi
echo "deps: installing$missing"
apt="$sudo env DEBIAN_FRONTEND=noninteractive apt-get -q -y"
$apt update || echo "deps: apt-get update failed, trying with the lists at hand" >&2
# shellcheck disable=SC2086  # words on purpose
$apt install --no-install-recommends $missing
