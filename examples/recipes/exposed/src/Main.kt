// Exposed: the default of the key is a number from hapax.
import id.hapax.client.HapaxClient
import org.jetbrains.exposed.sql.*
import org.jetbrains.exposed.sql.transactions.transaction
import java.net.URI
import kotlin.concurrent.thread

val hapax: HapaxClient = HapaxClient.builder(System.getenv("HAPAX_SERVER")).build()
val orders = hapax.tag("exposed-orders")

object Orders : Table("recipe_exposed") {
    val id = long("id").clientDefault { orders.next() }
    val what = text("what")
    override val primaryKey = PrimaryKey(id)
}

fun main(args: Array<String>) {
    val url = URI(System.getenv("DATABASE_URL"))
    Database.connect("jdbc:postgresql://${url.host}:${url.port}${url.path}", user = url.userInfo.substringBefore(':'), password = url.userInfo.substringAfter(':', ""))
    if (args[0] == "create") {
        transaction { SchemaUtils.create(Orders) }
        return hapax.close()
    }
    val rows = args[0].toInt()
    val threads = List(2) { k ->
        thread {
            repeat(rows / 2) { n -> transaction { Orders.insert { it[what] = "order $k.$n" } } }
        }
    }
    threads.forEach { it.join() }
    transaction { Orders.batchInsert(1..rows) { this[Orders.what] = "bulk $it" } }
    hapax.close()
}
