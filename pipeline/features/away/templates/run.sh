#!/bin/sh
# Runs the turns on an iPhone that a Mac reaches: sh run.sh DEVICE PREFIX, after the app was built. Brings session/ here.
cd "${0%/*}" || exit 2
device=${1:?name a device of xcrun devicectl list devices} app=${2:?name the prefix that the app was built with}.package
xcrun devicectl device install app --device "$device" build/Build/Products/Release-iphoneos/Package.app || exit 2
turn=0
while [ "$turn" -lt {{ turns | number }} ]; do
  xcrun devicectl device process launch --console --terminate-existing --device "$device" "$app" --turns 1
  turn=$((turn + 1))
done
rm -rf session
xcrun devicectl device copy from --device "$device" --domain-type appDataContainer --domain-identifier "$app" \
  --source Documents/{{ home | token }}/session --destination session
