import { app } from "./app.js";

console.log(`${await app.listen({ host: "127.0.0.1", port: 3000 })}/v1`);
