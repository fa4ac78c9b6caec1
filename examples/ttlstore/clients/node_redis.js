// node-redis with keys that vanish on time, in both protocols: node node_redis.js PORT
const assert = require("node:assert");
const { createClient } = require("redis");

async function run(RESP) {
  const url = `redis://127.0.0.1:${process.argv[2]}`;
  const client = createClient({ url, RESP, name: "e2e" });
  client.on("error", (error) => { throw error; });
  await client.connect();
  await client.flushDb();
  await client.set("a", "1", { PX: 60_000 });
  assert.equal(await client.incr("a"), 2);
  assert.deepEqual(await client.multi().set("b", "x").get("b").incr("a").exec(), ["OK", "x", 3]);
  await client.mSet({ c: "1", d: "2" });
  assert.deepEqual(await client.mGet(["c", "d", "none"]), ["1", "2", null]);
  const keys = [];
  for await (const found of client.scanIterator({ MATCH: "*" })) keys.push(...[found].flat());
  assert.deepEqual(keys.sort(), ["a", "b", "c", "d"]);
  await assert.rejects(client.lPush("a", "1"), /unknown command 'LPUSH'/);
  const listener = client.duplicate();
  await listener.connect();
  const heard = new Promise((resolve) => listener.pSubscribe("__keyevent@0__:*", resolve));
  await client.setEx("soon", 1, "v");
  assert.equal(await heard, "soon");
  assert.equal(await client.exists("soon"), 0);
  await Promise.all([client, listener].map((one) => one.close()));
}

(async () => {
  await run(2);
  await run(3);
  console.log("node-redis", require("redis/package.json").version);
})();
