/** The text that the tab starts with: a few facts in short sentences, which even the smallest model learns in seconds. */

const FACTS = [
  "The jerboa is a small animal with long legs.",
  "The jerboa lives in the sand and sleeps all day.",
  "At night the jerboa hops out and looks for seeds.",
  "The jerboa has a long tail, so it can hop far.",
  "The jerboa is happy when the moon is big and bright.",
];

/** The facts in several orders, so that some of them can measure the loss. */
export const EXAMPLE = Array.from({ length: 3 }, (_, turn) => FACTS.map((_, i) => FACTS[(i * (turn % 4 + 1) + turn) % FACTS.length]).join(" ")).join("\n");
