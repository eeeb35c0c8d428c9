import { getRequestListener } from "@hono/node-server";
import express from "express";
import { jerboa } from "./models.js";

export const app = express();
// Before any body parser: the handler reads the request itself.
app.use("/v1", getRequestListener(jerboa));
