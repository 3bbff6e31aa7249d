"use strict";

// Numbers for entities of TypeORM.
//
//   new DataSource({ …, entities: [Order], subscribers: [numbered(client, { Order: { id: "orders" } })] });
//
// It serves save, insert and query builders. The numbers are strings, as TypeORM itself gives
// columns of the type bigint.

const { EventSubscriber } = require("typeorm");

/** Makes a subscriber: the names of entities, of their properties, and of tags. */
function numbered(client, entities) {
  const tags = new Map(
    Object.entries(entities).map(([entity, properties]) => [entity, Object.entries(properties).map(([property, tag]) => [property, client.tag(tag, { as: "string" })])]),
  );
  class HapaxNumbers {
    beforeInsert({ entity, metadata }) {
      const missing = tags.get(metadata.name)?.filter(([property]) => entity[property] === undefined || entity[property] === null);
      if (!missing?.length) return undefined;
      return Promise.all(missing.map(async ([property, tag]) => (entity[property] = await tag.next())));
    }
  }
  EventSubscriber()(HapaxNumbers);
  return HapaxNumbers;
}

module.exports = { numbered };
