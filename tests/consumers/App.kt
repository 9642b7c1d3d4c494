package app

import com.example.mnist_models.Mnist
import java.io.File
import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.nio.FloatBuffer
import java.nio.channels.FileChannel

/** A library of an app team: what it offers is written out, as -Xexplicit-api=strict demands. */
public class Digits(model: File) : AutoCloseable {
    private val model: Mnist = Mnist.open(model)

    public val way: String get() = model.way()

    public fun logits(image: FloatBuffer): FloatArray =
        model.run(image).use { result ->
            val logits: FloatBuffer = result.logits()
            FloatArray(logits.remaining()).also { logits.get(it) }
        }

    override fun close(): Unit = model.close()
}

public fun main(arguments: Array<String>) {
    val bytes = ByteBuffer.wrap(File(arguments[1]).readBytes()).order(ByteOrder.LITTLE_ENDIAN)
    Digits(File(arguments[0])).use { digits ->
        println(digits.way)
        println(digits.logits(bytes.asFloatBuffer()).joinToString(" "))
    }
    val file = File(arguments[0]).inputStream().channel
    val mapped: ByteBuffer = file.use { it.map(FileChannel.MapMode.READ_ONLY, 0, it.size()) }
    Mnist.open(mapped).use { model -> println(model.session().inputNames) }
    kotlin.system.exitProcess(0)
}
