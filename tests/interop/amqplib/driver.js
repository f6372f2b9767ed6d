// Drives the unmodified client amqplib: does one job and prints one JSON line; exits with 1 and the error otherwise.
'use strict';
const assert = require('assert');
const amqp = require('amqplib');
const [url, job] = process.argv.slice(2);

const jobs = {
  // Confirmed persistent messages through a topic exchange, consumed with acks, in order.
  async work(connection) {
    const channel = await connection.createConfirmChannel();
    await channel.assertExchange('node-ex', 'topic', { durable: true });
    await channel.assertQueue('node-q', { durable: true });
    await channel.bindQueue('node-q', 'node-ex', 'a.*');
    for (let number = 0; number < 500; number += 1) {
      channel.publish('node-ex', 'a.b', Buffer.from(String(number)), { persistent: true, headers: { number } });
    }
    await channel.waitForConfirms();
    await channel.prefetch(50);
    const found = [];
    await new Promise((resolve) => {
      channel.consume('node-q', (message) => {
        if (message === null) return; // the queue is deleted
        found.push(Number(message.content.toString()));
        assert.strictEqual(message.properties.headers.number, found[found.length - 1]);
        channel.ack(message);
        if (found.length === 500) resolve();
      });
    });
    await channel.deleteQueue('node-q');
    await channel.deleteExchange('node-ex');
    return found;
  },

  // A call and its answer over the direct reply queue.
  async rpc(connection) {
    const server = await connection.createChannel();
    await server.assertQueue('node-rpc', { autoDelete: true });
    await server.consume('node-rpc', (message) => {
      const answer = Buffer.from(message.content.toString().toUpperCase());
      server.sendToQueue(message.properties.replyTo, answer, { correlationId: message.properties.correlationId });
      server.ack(message);
    });
    const client = await connection.createChannel();
    const answer = new Promise((resolve) => {
      client.consume('amq.rabbitmq.reply-to', (message) => resolve(message), { noAck: true });
    });
    client.sendToQueue('node-rpc', Buffer.from('hello'), { replyTo: 'amq.rabbitmq.reply-to', correlationId: '7' });
    const message = await answer;
    return [message.content.toString(), message.properties.correlationId];
  },

  // What cannot be routed comes back; a wrong redeclaration closes the channel with 406 and not the connection.
  async errors(connection) {
    const channel = await connection.createChannel();
    const returned = new Promise((resolve) => channel.on('return', resolve));
    channel.publish('', 'nobody', Buffer.from('x'), { mandatory: true });
    const back = await returned;
    await channel.assertQueue('node-e', { durable: true });
    const other = await connection.createChannel();
    const closed = new Promise((resolve) => other.on('error', resolve));
    await other.assertQueue('node-e', { durable: false }).catch(() => {});
    const error = await closed;
    const deleted = await channel.deleteQueue('node-e');
    return [back.fields.replyCode, error.code, deleted.messageCount];
  },

  // Rejected messages reach the dead-letter queue with their history.
  async dead(connection) {
    const channel = await connection.createChannel();
    await channel.assertQueue('node-dlq', { durable: true });
    await channel.assertQueue('node-src', {
      durable: true, deadLetterExchange: '', deadLetterRoutingKey: 'node-dlq', messageTtl: 60000,
    });
    channel.sendToQueue('node-src', Buffer.from('bad'), { persistent: true });
    await new Promise((resolve) => {
      channel.consume('node-src', (message) => {
        if (message === null) return; // the queue is deleted
        channel.nack(message, false, false);
        resolve();
      });
    });
    let message = false;
    while (message === false) message = await channel.get('node-dlq', { noAck: true });
    const [death] = message.properties.headers['x-death'];
    await channel.deleteQueue('node-src');
    await channel.deleteQueue('node-dlq');
    return [message.content.toString(), death.reason, death.queue, death.count];
  },

  // A stream is read twice from its start.
  async stream(connection) {
    const channel = await connection.createConfirmChannel();
    await channel.assertQueue('node-stream', { durable: true, arguments: { 'x-queue-type': 'stream' } });
    for (let number = 0; number < 20; number += 1) channel.sendToQueue('node-stream', Buffer.from(String(number)));
    await channel.waitForConfirms();
    await channel.prefetch(5);
    const read = () => new Promise((resolve) => {
      const offsets = [];
      channel.consume('node-stream', (message) => {
        if (message === null) return; // the queue is deleted
        offsets.push(Number(message.properties.headers['x-stream-offset']));
        channel.ack(message);
        if (offsets.length === 20) resolve(offsets);
      }, { arguments: { 'x-stream-offset': 'first' } });
    });
    const found = [await read(), await read()];
    await channel.deleteQueue('node-stream');
    return found;
  },
};

(async () => {
  const connection = await amqp.connect(url);
  const result = await jobs[job](connection);
  await connection.close();
  console.log(JSON.stringify(result));
})().catch((error) => { console.error(error); process.exit(1); });
