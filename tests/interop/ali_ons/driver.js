'use strict';

// Drives the client `ali-ons` in a process of its own: node driver.js ROLE '{"namesrv": ..., ...}'.
//
// Prints one JSON object a line; what a consumer gets is printed as it comes. The end of standard input ends it in order:
// a consumer then commits its offsets and leaves its group. NODE_PATH says where the package is.

const { Consumer, Message, Producer } = require('ali-ons');

const TICK_MS = 500;

function say(fields) {
  process.stdout.write(JSON.stringify(fields) + '\n');
}

function clientOptions(options) {
  return {
    httpclient: {},
    nameSrv: options.namesrv,
    pollNameServerInteval: TICK_MS,
    heartbeatBrokerInterval: TICK_MS,
    rebalanceInterval: TICK_MS,
    persistConsumerOffsetInterval: TICK_MS,
  };
}

function message(topic, spec) {
  const made = new Message(topic, spec.tags || null, spec.body);
  if (spec.keys) {
    made.keys = spec.keys;
  }
  if (spec.delay) {
    made.delayTimeLevel = spec.delay;
  }
  Object.assign(made.properties, spec.properties);
  return made;
}

async function produce(options) {
  const producer = new Producer({ ...clientOptions(options), producerGroup: options.group || 'producers' });
  producer.on('error', error => say({ trouble: error.message }));
  await producer.ready();
  for (const spec of options.messages) {
    try {
      const sent = await producer.send(message(options.topic, spec));
      say({ status: sent.sendStatus, id: sent.msgId, queue: Number(sent.messageQueue.queueId), offset: sent.queueOffset });
    } catch (error) {
      say({ error: error.message });
    }
  }
  say({ done: true });
  process.exit(0);
}

function consume(options) {
  const consumer = new Consumer({
    ...clientOptions(options),
    consumerGroup: options.group,
    isBroadcast: Boolean(options.broadcast),
    consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET',
  });
  const toFail = new Set(options.fail || []);
  consumer.on('error', error => say({ trouble: error.message }));
  consumer.subscribe(options.topic, options.expression || '*', async got => {
    const body = got.body.toString();
    const { msgId: id, tags, keys, queueId: queue, queueOffset: offset, reconsumeTimes: times, properties } = got;
    say({ body, id, tags, keys, queue, offset, times, properties });
    if (toFail.has(body) && times === 0) {
      throw new Error('as the test wants');
    }
  });
  consumer.ready().then(() => say({ started: true }));
  process.stdin.resume();
  process.stdin.on('end', async () => {
    await consumer.close();
    say({ done: true });
    process.exit(0);
  });
}

({ produce, consume })[process.argv[2]](JSON.parse(process.argv[3]));
