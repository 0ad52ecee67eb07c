"""The jars of ZooKeeper and HBase, by version: their Maven coordinates and SHA-256 checksums.

Each list has the jars that the server loads: ZooKeeper's dependencies, its metrics, the compression
of its snapshots and a logger that prints, without the jars that only TLS on OpenSSL needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["HBASE_JARS", "ZOOKEEPER_JARS"]

# The jars that the versions from 3.8 on have in common.
_SINCE_3_8: Final = {
    "commons-io:commons-io:2.17.0": "4aa4ca48f3dfd30b78220b7881d8cb93eac4093ec94361b6befa9487998a550b",
    "io.dropwizard.metrics:metrics-core:4.2.30": "8eeac95450c03378d9d4c1dedff7118bb63508a97613f4df074c924e1b82ccfb",
    "io.netty:netty-buffer:4.1.130.Final": "00a522b67ea35cb7b4dd9cf27f85c6c58f5e306785aa045302e5f6b2d4944a87",
    "io.netty:netty-codec:4.1.130.Final": "52636bc29bd62120b97bbe5d1d21eab9b1cb2bef8efbb54d2221c5f3fa08d8cd",
    "io.netty:netty-common:4.1.130.Final": "53921f28dd5a352b1bed0e1cbcc54d013dc60ffebeae9b2b1e53eabef317e581",
    "io.netty:netty-handler:4.1.130.Final": "98c78ec187ca30a4b9775bf6f632f5c9929db6bf06a60e6971f945813880ca0f",
    "io.netty:netty-resolver:4.1.130.Final": "48c5b218a89d184e1b601d46433957f515fcefdb4464182b1348bce4f5a18f35",
    "io.netty:netty-transport-classes-epoll:4.1.130.Final": "1c352508d70aca1ccc3068daac907ad1e9d8dc68b07148d57426730bf0d0c8b6",
    "io.netty:netty-transport-native-unix-common:4.1.130.Final": "cf5efc4168597d7cd14695b469418cac2a1134533f9a0c82ef0538d796fd39e1",
    "io.netty:netty-transport:4.1.130.Final": "1bf573266d271f856705a9984d25449c56a1d73c02a16af12033ceccfe555dbb",
    "org.apache.yetus:audience-annotations:0.12.0": "ffb101fc066360ff3c77457c927fd7967fb096a6ee9e046ab7071447d8208efc",
    "org.slf4j:slf4j-api:2.0.13": "e7c2a48e8515ba1f49fa637d57b4e2f590b3f5bd97407ac699c3aa5efb1204a9",
    "org.slf4j:slf4j-simple:2.0.13": "3153fe1d689cffb94f1530b58470c306685ba68844de8857116e3b6ebb81d9f7",
    "org.xerial.snappy:snappy-java:1.1.10.8": "50485d06037fea3d6e40c968386feeca6338cc9872e25549593ff3eb352cefcc",
}

ZOOKEEPER_JARS: Final[Mapping[str, Mapping[str, str]]] = {
    # This version is not supported. It is here to test that it is refused.
    "3.5.10": {
        "io.netty:netty-buffer:4.1.77.Final": "41b7ddc4dd124c7e75af33a13a426fda4e1ec87c387cd234971e7df4c0b51c26",
        "io.netty:netty-codec:4.1.77.Final": "84e4e01dd5b345311e971289b5bc08c0dfd6054a28d16853f0416943c9a3e458",
        "io.netty:netty-common:4.1.77.Final": "40dd9b5ef14878f050a1f7f4d5647d53473f134e349665b47243bde56de7a51f",
        "io.netty:netty-handler:4.1.77.Final": "7911becd4850ff3fc3d93b4be7c468a2f6444fb48c17eec03c807856faf11e0a",
        "io.netty:netty-resolver:4.1.77.Final": "0161cfe9544b3656ed0de67d8937828101859e94bcd0caaf58d21ac7011eabd4",
        "io.netty:netty-transport-classes-epoll:4.1.77.Final": "0593fb942d7d57aadcc22360a238dcfac9f29013a20201ef49cc392b0dd2aaf9",
        "io.netty:netty-transport-native-unix-common:4.1.77.Final": "108d27f325fa9ce9a914fa53638fbeeb1a384148fb3a13389bd09a5e38e4ac1e",
        "io.netty:netty-transport:4.1.77.Final": "034cdf7d81feaad9977c3d8b4fc05611952bc9861dfb9085b8962e2c1de582aa",
        "org.apache.yetus:audience-annotations:0.5.0": "c82631f06c75d46bf6524d95f0d6c2e3aef1b3eb4a7b584ca296624ef0d474be",
        "org.apache.zookeeper:zookeeper-jute:3.5.10": "edc31093829ab70f082456d0baecf1eade3f3d6f4dc81c1d3a1e04ed2920086d",
        "org.apache.zookeeper:zookeeper:3.5.10": "6e464f38311feafa64c1759ba70c99a8df7c5fa73015566106472dbeae9f91a2",
        "org.slf4j:slf4j-api:1.7.36": "d3ef575e3e4979678dc01bf1dcce51021493b4d11fb7f1be8ad982877c16a1c0",
        "org.slf4j:slf4j-simple:1.7.36": "2f39bed943d624dfa8f4102d0571283a10870b6aa36f197a8a506f147010c10f",
    },
    "3.6.4": {
        "io.dropwizard.metrics:metrics-core:4.2.30": "8eeac95450c03378d9d4c1dedff7118bb63508a97613f4df074c924e1b82ccfb",
        "io.netty:netty-buffer:4.1.86.Final": "e42e15f47c865266b1faa6e038ebfd7ddadcf9f4ae9e6617edd4881dbd4abe88",
        "io.netty:netty-codec:4.1.86.Final": "0456840b5c851dad6cab881cd1a9ad5d916db65d81048145df1d9a6d03325bea",
        "io.netty:netty-common:4.1.86.Final": "a35a3f16e7cd45c5d8529aa3e7702d4ef3b36213ea332db59744ea348fc2ae99",
        "io.netty:netty-handler:4.1.86.Final": "e69b42292929b278dc522e25177ddf7c54025484b55879f8227349adfbe1c04d",
        "io.netty:netty-resolver:4.1.86.Final": "7628a1309d7f2443dc41d8923a7f269e2981b9616f80a999eb7264ae6bcbfdba",
        "io.netty:netty-transport-classes-epoll:4.1.86.Final": "3cc7eb87d85d6b4bf3d596a172a92df09f8d746c2b283c85543c95795b51edda",
        "io.netty:netty-transport-native-unix-common:4.1.86.Final": "ec26d03a06565791d57e997f793677ee4d3fc47b290b7951898c2ecd0232f115",
        "io.netty:netty-transport:4.1.86.Final": "f6726dcd54e4922b46b3b4f4467b443a70a30eb08a62620c8fe502d8cb802c9f",
        "org.apache.yetus:audience-annotations:0.13.0": "3bfbb397b06f63a2a0a361f62ed32cf199bd92ddd48ea99281f4987edec9777b",
        "org.apache.zookeeper:zookeeper-jute:3.6.4": "f3477ca671fe1a91553b5279ab7ad01e435d20cd7de902252a82716e70a3e730",
        "org.apache.zookeeper:zookeeper:3.6.4": "570794d876e9abf0367d03e8ca4e50274d3c57a730d739d862bd1fe0b4f5f805",
        "org.slf4j:slf4j-api:1.7.36": "d3ef575e3e4979678dc01bf1dcce51021493b4d11fb7f1be8ad982877c16a1c0",
        "org.slf4j:slf4j-simple:1.7.36": "2f39bed943d624dfa8f4102d0571283a10870b6aa36f197a8a506f147010c10f",
        "org.xerial.snappy:snappy-java:1.1.10.8": "50485d06037fea3d6e40c968386feeca6338cc9872e25549593ff3eb352cefcc",
    },
    "3.7.2": {
        "io.dropwizard.metrics:metrics-core:4.2.30": "8eeac95450c03378d9d4c1dedff7118bb63508a97613f4df074c924e1b82ccfb",
        "io.netty:netty-buffer:4.1.94.Final": "8066ee7c49f9f29da96ee62f7cb13bee022cb4b68e51437b33da3b6d01398f13",
        "io.netty:netty-codec:4.1.94.Final": "91243776ad68b4d8e39eafb9ec115e1b8fa9aecd147b12ef15bb691639498328",
        "io.netty:netty-common:4.1.94.Final": "cb8d84a3e63aea90d0d7a333a02e50ac751d2b05db55745d981b5eff893f647b",
        "io.netty:netty-handler:4.1.94.Final": "8e50719a9ab89e33ef85c5f36d780e0d7056b3f768b07d261d87baed7094eb3c",
        "io.netty:netty-resolver:4.1.94.Final": "bd26e9bc5e94e2d3974a93fdf921658eff4f033bfd4c5208607760ab54298617",
        "io.netty:netty-transport-classes-epoll:4.1.94.Final": "9d5d51eb42081d6fc13f4dca6855cd30d098a5b1d0b06d5644a1342bd1e50a44",
        "io.netty:netty-transport-native-unix-common:4.1.94.Final": "27d0dff1cd743190279becacfb372fe4d45b266edafad9f1c6c01b04d00280eb",
        "io.netty:netty-transport:4.1.94.Final": "a75afa84ca35a50225991b39e6b6278186e612f7a2a0c0e981de523aaac516a4",
        "org.apache.yetus:audience-annotations:0.12.0": "ffb101fc066360ff3c77457c927fd7967fb096a6ee9e046ab7071447d8208efc",
        "org.apache.zookeeper:zookeeper-jute:3.7.2": "ad15d812b1f01f373638443adcda0e23fda549d65ced2be8c4f64bef33b5d774",
        "org.apache.zookeeper:zookeeper:3.7.2": "b12d6fb4afd7b3849d3a9a5a38b9260c23a12e1ea58ca8c8d775880249cb8eac",
        "org.slf4j:slf4j-api:1.7.35": "84cbd60deaf9e18db8cb181e43db4e63f7de353cfcaf654a76d85b22da4d2762",
        "org.slf4j:slf4j-simple:1.7.35": "987dd391abde7c769335bf7a8834d64f9fe1ff2fada6615c783ee9c0076e5d0a",
        "org.xerial.snappy:snappy-java:1.1.10.8": "50485d06037fea3d6e40c968386feeca6338cc9872e25549593ff3eb352cefcc",
    },
    "3.8.7": {
        **_SINCE_3_8,
        "org.apache.zookeeper:zookeeper-jute:3.8.7": "a4980a3cd8fe0b4640326ccb4048556de66a34d0ed0c12a2380df7315de15b36",
        "org.apache.zookeeper:zookeeper:3.8.7": "fd12731eecb5d3ace48fa25f0141f011bcb13273b5dca301ff15d5409bd52a91",
    },
    "3.9.6": {
        **_SINCE_3_8,
        "org.apache.zookeeper:zookeeper-jute:3.9.6": "74f9cb1e4ba899ecc4b816201b4afd1c63c256705bd9176393fac4071597c75f",
        "org.apache.zookeeper:zookeeper:3.9.6": "09bdf93be7c0b5b7cd9fe51bee6abe424796cd5aaf75cf0c10bbd6f1273562ee",
    },
}

#: Beside these, an HBase needs jars that pyspark has: those of Hadoop, and a logger.
HBASE_JARS: Final[Mapping[str, Mapping[str, str]]] = {
    "2.6.4": {
        "io.opentelemetry.semconv:opentelemetry-semconv:1.29.0-alpha": "a95f1aed7e3f64353ec625c6def72a0caaf06b6c53970f578fdd513dafd995fd",
        "io.opentelemetry:opentelemetry-api:1.15.0": "765999a64656f71c5ae22ba5942993f117af0ee277ef3f08d6e90dc765a3ed57",
        "io.opentelemetry:opentelemetry-context:1.15.0": "fa47bc74477de40b6654454f33819fc619389d1b9bdb914bf78eea36d13998c9",
        "javax.servlet:javax.servlet-api:3.1.0": "af456b2dd41c4e82cf54f3e743bc678973d9fe35bd4d3071fa05c7e5333b8482",
        "org.apache.hbase:hbase-shaded-mapreduce:2.6.4-hadoop3": "534e1d19415b579eb8598ab0b721bf2c7fe2fe7abc2659d8c08a8fa7fb4fa1eb",
        "org.apache.yetus:audience-annotations:0.13.0": "3bfbb397b06f63a2a0a361f62ed32cf199bd92ddd48ea99281f4987edec9777b",
    },
}
