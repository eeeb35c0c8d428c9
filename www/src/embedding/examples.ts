/** Example notes for the search. */

export const EXAMPLES: readonly { id: string; text: string }[] = [
  { id: "Bees", text: "A honey bee colony has one queen, who lays every egg, and thousands of workers who gather nectar and pollen. When a worker finds flowers, she dances in the hive; the angle of the dance tells the other bees where to fly. Bees live in the hive all winter." },
  { id: "Bread", text: "Bread dough rises because yeast feeds on sugar and gives off carbon dioxide, which the gluten holds in bubbles. A sourdough starter is flour and water left to ferment; wild yeast and bacteria make it sour." },
  { id: "Rust", text: "Iron rusts when oxygen and water reach its surface. Paint, grease or a layer of zinc keeps them away." },
  { id: "The Moon", text: "The same side of the Moon always faces the Earth, since it turns once on its axis in the time of one orbit. Its gravity, with the Sun's, raises the tides of the sea." },
  { id: "Jerboas", text: "Jerboas are small desert rodents that hop on long hind legs. They sleep in burrows through the heat of the day and get their water from the plants and insects that they eat." },
  { id: "Glaciers", text: "A glacier forms where more snow falls than melts. Under its own weight the snow becomes ice and flows slowly downhill, grinding valleys into the shape of a U." },
  { id: "Tea", text: "Green, black and oolong tea come from leaves of one plant. They differ in how long the leaves oxidise before heat stops it." },
  { id: "Volcanoes", text: "A volcano erupts when gas in rising magma expands, as in a bottle of soda that is opened. Ash can stop air traffic for days." },
];

/** Questions about the notes, each with the note that answers it: the bundled encoder finds it first. */
export const QUESTIONS: readonly { text: string; note: string }[] = [
  { text: "Where do bees live?", note: "Bees" },
  { text: "What makes a sourdough starter sour?", note: "Bread" },
  { text: "What keeps iron from rusting?", note: "Rust" },
  { text: "Where do jerboas get their water?", note: "Jerboas" },
];
