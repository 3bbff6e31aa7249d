// Prints what redocly has to say of a description, a line each.
import { createConfig, lint } from "@redocly/openapi-core";

const config = await createConfig({ extends: ["recommended"] });
for (const p of await lint({ ref: process.argv[2], config })) {
  console.log(p.ruleId, p.severity, p.location[0]?.pointer, p.message);
}
