// One copy of the code, and so of what is in hand, for both kinds of modules.
import hapax from "./index.cjs";

export const { Client, HapaxError, Tag } = hapax;
