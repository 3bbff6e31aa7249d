"use strict";

// Tells whether this is still the program in which something began.

const { randomBytes } = require("node:crypto");
const { startupSnapshot } = require("node:v8");

let token = randomBytes(16).toString("hex");

// A startup snapshot is a copy of the heap, and each process that begins with it has that copy. Two
// containers give both the same process ID, too.
if (startupSnapshot?.isBuildingSnapshot()) {
  startupSnapshot.addDeserializeCallback(() => {
    token = randomBytes(16).toString("hex");
  });
}

exports.here = () => ({ pid: process.pid, token });

exports.isHere = (place) => place.pid === process.pid && place.token === token;
