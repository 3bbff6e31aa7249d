<?php

declare(strict_types=1);

namespace Hapax\Doctrine;

use Doctrine\ORM\EntityManagerInterface;
use Doctrine\ORM\Id\AbstractIdGenerator;
use Hapax\Client;

/**
 * Gives entities of Doctrine their numbers when they are persisted.
 *
 *     Numbers::of($client); // once, when the program begins
 *
 *     #[ORM\Id, ORM\Column(type: 'bigint'), ORM\GeneratedValue(strategy: 'CUSTOM'), ORM\CustomIdGenerator(Numbers::class)]
 *     public readonly int $id;
 *
 * The tag is the name of the entity's table; `#[Tag('orders')]` on the entity names another one.
 */
final class Numbers extends AbstractIdGenerator
{
    private static ?Client $client = null;
    /** @var array<string, \Hapax\Tag> of each class */
    private array $tags = [];

    public static function of(?Client $client): void
    {
        self::$client = $client;
    }

    /** @param object|null $entity */
    public function generateId(EntityManagerInterface $em, $entity): int
    {
        if (self::$client === null) {
            throw new \LogicException('no client of hapax: call ' . self::class . '::of($client) when the program begins');
        }
        $class = $em->getClassMetadata($entity::class)->rootEntityName; // of all that share the table's key
        $this->tags[$class] ??= self::$client->tag($this->nameFor($em, $class));
        return $this->tags[$class]->next();
    }

    /** Doctrine keeps generators in its cache of metadata. */
    public function __serialize(): array
    {
        return [];
    }

    public function __unserialize(array $data): void
    {
    }

    private function nameFor(EntityManagerInterface $em, string $class): string
    {
        foreach ((new \ReflectionClass($class))->getAttributes(Tag::class) as $attribute) {
            return $attribute->newInstance()->name;
        }
        return $em->getClassMetadata($class)->getTableName();
    }
}
