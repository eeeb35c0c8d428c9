import { Hono } from "hono";
import { cors } from "hono/cors";
import { jerboa } from "./models.js";

export const app = new Hono();
app.use("/v1/*", cors());
app.all("/v1/*", (context) => jerboa(context.req.raw));
