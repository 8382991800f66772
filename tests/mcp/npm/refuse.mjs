// The official client in TypeScript: lists the tools, then has each refuse a call once. Prints what it read.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const [address, token] = process.argv.slice(2);
const transport = new StreamableHTTPClientTransport(new URL(address), {
  requestInit: { headers: { Authorization: `Bearer ${token}` } },
});
const client = new Client({ name: "refused", version: "1" });
await client.connect(transport);
const { tools } = await client.listTools();
const read = {};
for (const tool of tools) {
  read[tool.name] = await client.callTool({ name: tool.name, arguments: { nonesuch: 1 } });
}
await client.close();
console.log(JSON.stringify(read));
