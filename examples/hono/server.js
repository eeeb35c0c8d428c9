import { serve } from "@hono/node-server";
import { app } from "./app.js";

serve({ fetch: app.fetch, hostname: "127.0.0.1", port: 3000 }, ({ port }) => console.log(`http://127.0.0.1:${port}/v1`));
