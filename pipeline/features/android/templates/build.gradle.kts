// Written by ort-mobile; the folder is replaced when it is written again.
plugins {
    id("com.android.ai-pack")
}

aiPack {
    packName = {{ name | kotlin_text }}
    dynamicDelivery {
        deliveryType = "install-time"
    }
}
